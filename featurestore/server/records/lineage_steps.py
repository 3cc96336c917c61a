"""Edges of lineage around a node, from the registry."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.engine import Connection

from featurestore.model.paths import FEATUREVIEWS, MODELS, TRAININGDATASETS
from featurestore.registry import featuregroups, overview
from featurestore.server.records.lineage_graph import MAX_NODES, Node

_SOURCE_PREFIX = "source:"
# Sources other than groups are stored with their folder below the location.
_FOLDERS = {
    FEATUREVIEWS: "feature_view",
    TRAININGDATASETS: "training_dataset",
    MODELS: "model",
}


def sources(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the edges that lead to a node."""
    if node.kind == "source":
        return []
    column = "job" if node.kind == "job" else "name"
    rows = overview.edges(connection, limit=MAX_NODES, of={column: node.name})
    edges = edges_of(connection, rows)
    if node.kind == "experiment":
        edges += trainings(connection, experiment=node.name)
    elif node.kind == "model":
        edges += trainings(connection, model=node.name)
    return [edge for edge in edges if edge[1] == node]


def results(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the edges that leave a node."""
    if node.kind == "job":
        rows = overview.edges(connection, limit=MAX_NODES, of={"job": node.name})
    else:
        name = _source_name(node)
        rows = overview.edges(connection, limit=MAX_NODES, of={"source": name})
        if not rows and node.kind == "source":
            rows = overview.edges(connection, limit=MAX_NODES, of={"source": node.name})
    edges = edges_of(connection, rows)
    if node.kind == "experiment":
        edges += trainings(connection, experiment=node.name)
    elif node.kind == "training_dataset":
        edges += trainings(connection, dataset=node.name)
    return [edge for edge in edges if edge[0] == node]


def trainings(
    connection: Connection, *, limit: int = MAX_NODES, **filters: str
) -> list[tuple[Node, Node]]:
    """Return the edges from datasets to experiments, and from experiments to models."""
    edges: dict[tuple[Node, Node], None] = {}
    for training in overview.trainings(connection, filters, limit=limit):
        experiment = Node("experiment", training.experiment)
        edges[Node("training_dataset", training.dataset, training.dataset_version), experiment] = (
            None
        )
        if training.model is not None:
            edges[experiment, Node("model", training.model, training.model_version)] = None
    return list(edges)


def edges_of(
    connection: Connection,
    rows: Iterable[tuple[str, str, int, str | None, str, int | None]],
) -> list[tuple[Node, Node]]:
    """Convert rows to edges; a job is a node between its input and its output."""
    edges: dict[tuple[Node, Node], None] = {}
    for kind, name, version, job, source, source_version in rows:
        target, origin = Node(kind, name, version), _source_node(connection, source, source_version)
        if job is None:
            edges[origin, target] = None
        else:
            edges[origin, Node("job", job)] = None
            edges[Node("job", job), target] = None
    return list(edges)


def _source_name(node: Node) -> str:
    """Return the name under which lineage stores a node as a source."""
    if node.kind == "source":
        return f"{_SOURCE_PREFIX}{node.name}"
    for folder, kind in _FOLDERS.items():
        if node.kind == kind:
            return f"{folder}/{node.name}"
    return node.name


def _source_node(connection: Connection, source: str, version: int | None) -> Node:
    if source.startswith(_SOURCE_PREFIX):
        return Node("source", source.removeprefix(_SOURCE_PREFIX))
    folder, _, name = source.partition("/")
    if folder in _FOLDERS and version is not None:
        return Node(_FOLDERS[folder], name, version)
    if version is None and not featuregroups.versions(connection, source):
        return Node("source", source)
    return Node("featuregroup", source, version)
