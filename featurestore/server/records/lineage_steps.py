"""One step of lineage: what a thing was made from, and what was made from it."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.engine import Connection

from featurestore.model.paths import FEATUREVIEWS, MODELS, TRAININGDATASETS
from featurestore.registry import featuregroups, overview
from featurestore.server.records.lineage_graph import MOST_NODES, Node

_SOURCE = "source:"
# What lineage calls the sources that are no groups: their folders below the location.
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
    rows = overview.edges(connection, limit=MOST_NODES, of={column: node.name})
    edges = edges_of(connection, rows)
    if node.kind == "experiment":
        edges += trainings(connection, experiment=node.name)
    elif node.kind == "model":
        edges += trainings(connection, model=node.name)
    return [edge for edge in edges if edge[1] == node]


def results(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the edges that leave a node."""
    if node.kind == "job":
        rows = overview.edges(connection, limit=MOST_NODES, of={"job": node.name})
    else:
        name = _source_of(node)
        rows = overview.edges(connection, limit=MOST_NODES, of={"source": name})
        if not rows and node.kind == "source":
            rows = overview.edges(connection, limit=MOST_NODES, of={"source": node.name})
    edges = edges_of(connection, rows)
    if node.kind == "experiment":
        edges += trainings(connection, experiment=node.name)
    elif node.kind == "training_dataset":
        edges += trainings(connection, dataset=node.name)
    return [edge for edge in edges if edge[0] == node]


def trainings(
    connection: Connection, *, limit: int = MOST_NODES, **of: str
) -> list[tuple[Node, Node]]:
    """Return the edges from datasets to experiments that read them, and on to their models."""
    edges: dict[tuple[Node, Node], None] = {}
    for found in overview.trainings(connection, of, limit=limit):
        experiment = Node("experiment", found.experiment)
        edges[Node("training_dataset", found.dataset, found.dataset_version), experiment] = None
        if found.model is not None:
            edges[experiment, Node("model", found.model, found.model_version)] = None
    return list(edges)


def edges_of(
    connection: Connection,
    rows: Iterable[tuple[str, str, int, str | None, str, int | None]],
) -> list[tuple[Node, Node]]:
    """Return rows as edges; a job stands between what it read and what it made."""
    edges: dict[tuple[Node, Node], None] = {}
    for kind, name, version, job, source, source_version in rows:
        made, read = Node(kind, name, version), _read(connection, source, source_version)
        if job is None:
            edges[read, made] = None
        else:
            edges[read, Node("job", job)] = None
            edges[Node("job", job), made] = None
    return list(edges)


def _source_of(node: Node) -> str:
    """Return what lineage calls a node where something was made of it."""
    if node.kind == "source":
        return f"{_SOURCE}{node.name}"
    for folder, kind in _FOLDERS.items():
        if node.kind == kind:
            return f"{folder}/{node.name}"
    return node.name


def _read(connection: Connection, source: str, version: int | None) -> Node:
    if source.startswith(_SOURCE):
        return Node("source", source.removeprefix(_SOURCE))
    folder, _, name = source.partition("/")
    if folder in _FOLDERS and version is not None:
        return Node(_FOLDERS[folder], name, version)
    if version is None and not featuregroups.versions(connection, source):
        return Node("source", source)
    return Node("featuregroup", source, version)
