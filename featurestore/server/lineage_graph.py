"""Nodes and graphs of lineage, and queries for their edges in the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from featurestore.model.paths import FEATUREVIEWS, MODELS, TRAININGDATASETS
from featurestore.registry import featuregroups, overview

KINDS = (
    "source",
    "job",
    "featuregroup",
    "feature",
    "feature_view",
    "training_dataset",
    "experiment",
    "model",
)
MAX_NODES = 400
_PAGES = {
    "featuregroup": "/groups/{name}/{version}",
    "feature": "/groups/{group}/{version}#feature-{column}",
    "feature_view": "/views/{name}/{version}",
    "training_dataset": "/datasets/{name}/{version}",
    "model": "/models/{name}/{version}",
    "job": "/jobs/{name}",
    "experiment": "/experiments?name={name}",
}
_SOURCE_PREFIX = "source:"
# Sources other than groups are stored with their folder relative to the location.
_FOLDERS = {FEATUREVIEWS: "feature_view", TRAININGDATASETS: "training_dataset", MODELS: "model"}


def type_label(object_type: str) -> str:
    """Return the display name of a kind.

    >>> type_label("featuregroup"), type_label("training_dataset")
    ('feature group', 'training dataset')
    """
    return "feature group" if object_type == "featuregroup" else object_type.replace("_", " ")


@dataclass(frozen=True, order=True)
class Node:
    """A lineage node; jobs, experiments and sources have no version.

    The key of a feature includes its group: ``feature:weather.temp@1``.
    """

    object_type: str
    name: str
    version: int | None = None

    @property
    def key(self) -> str:
        """The key of the node in URLs, such as ``featuregroup:weather@1``."""
        return f"{self.object_type}:{self.label}"

    @property
    def label(self) -> str:
        """The name and version to display."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def page(self) -> str | None:
        """The URL path of the node's page, None if it has no page."""
        pattern = _PAGES.get(self.object_type)
        if pattern is None:
            return None
        group, column = self.parts
        return pattern.format(name=self.name, version=self.version, group=group, column=column)

    @property
    def parts(self) -> tuple[str, str]:
        """The group and column of a feature."""
        group, _, column = self.name.partition(".")
        return group, column

    @classmethod
    def parse(cls, key: str) -> Node | None:
        """Parse a key; return None if it is invalid.

        >>> Node.parse("featuregroup:weather@1")
        Node(object_type='featuregroup', name='weather', version=1)
        """
        object_type, _, label = key.partition(":")
        if object_type not in KINDS or not label:
            return None
        name, _, version = label.rpartition("@")
        if name and version.isdecimal():
            node = cls(object_type, name, int(version))
        else:
            node = cls(object_type, label)
        is_complete = node.version is not None and all(node.parts)
        return node if object_type != "feature" or is_complete else None


@dataclass(frozen=True)
class Graph:
    """Nodes, and edges from inputs to outputs; ``truncated`` if nodes beyond the limit are missing.

    ``columns`` maps datasets and views to their columns that are derived from a feature.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[Node, Node], ...]
    truncated: bool = False
    columns: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_edges(
        cls,
        nodes: Iterable[Node],
        edges: Iterable[tuple[Node, Node]],
        *,
        truncated: bool,
        columns: Mapping[Node, tuple[str, ...]] | None = None,
    ) -> Graph:
        """Build a graph from nodes and the edges between them; other edges are omitted."""
        shown_nodes = list(nodes)
        node_set = set(shown_nodes)
        inner_edges = [
            (before, after)
            for before, after in dict.fromkeys(edges)
            if before in node_set and after in node_set and before != after
        ]
        return cls(tuple(shown_nodes), tuple(inner_edges), truncated, columns or {})

    def descendants(self, node: Node) -> list[Node]:
        """Return all descendants of a node, nearest first."""
        successors: dict[Node, list[Node]] = {}
        for before, after in self.edges:
            successors.setdefault(before, []).append(after)
        reached = dict.fromkeys(successors.get(node, ()))
        waiting = list(reached)
        while waiting:
            for successor in successors.get(waiting.pop(0), ()):
                if successor not in reached and successor != node:
                    reached[successor] = None
                    waiting.append(successor)
        return list(reached)


def sources(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the incoming edges of a node."""
    if node.object_type == "source":
        return []
    matching = {"kind": node.object_type, "name": node.name}
    if node.object_type == "job":
        matching = {"job": node.name}
    rows = overview.lineage_edges(connection, limit=MAX_NODES, matching=matching)
    edges = edges_of(connection, rows)
    if node.object_type == "experiment":
        edges += training_inputs(connection, experiment=node.name)
    elif node.object_type == "model":
        edges += training_results(connection, model=node.name)
    return [edge for edge in edges if edge[1] == node]


def results(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the outgoing edges of a node."""
    if node.object_type == "job":
        rows = overview.lineage_edges(connection, limit=MAX_NODES, matching={"job": node.name})
    else:
        name = _source_name(node)
        rows = overview.lineage_edges(connection, limit=MAX_NODES, matching={"source": name})
        # Sources that are not registered, such as paths, have no prefix.
        if not rows and node.object_type == "source":
            rows = overview.lineage_edges(
                connection, limit=MAX_NODES, matching={"source": node.name}
            )
    edges = edges_of(connection, rows)
    if node.object_type == "experiment":
        edges += training_results(connection, experiment=node.name)
    elif node.object_type == "training_dataset":
        edges += training_inputs(connection, dataset=node.name)
    return [edge for edge in edges if edge[0] == node]


def training_inputs(
    connection: Connection,
    *,
    limit: int = MAX_NODES,
    experiment: str | None = None,
    dataset: str | None = None,
) -> list[tuple[Node, Node]]:
    """Return the edges from datasets to the experiments that read them."""
    rows = overview.experiments_reading(
        connection, limit=limit, experiment=experiment, dataset=dataset
    )
    return [
        (Node("training_dataset", name, version), Node("experiment", reader))
        for reader, name, version in rows
    ]


def training_results(
    connection: Connection,
    *,
    limit: int = MAX_NODES,
    experiment: str | None = None,
    model: str | None = None,
) -> list[tuple[Node, Node]]:
    """Return the edges from experiments to the models that their runs trained."""
    rows = overview.trained_models(connection, limit=limit, experiment=experiment, model=model)
    return [
        (Node("experiment", trainer), Node("model", name, version))
        for trainer, name, version in rows
    ]


def edges_of(
    connection: Connection, rows: Iterable[tuple[str, str, int, str | None, str, int | None]]
) -> list[tuple[Node, Node]]:
    """Convert rows to edges; a job becomes a node between its input and its output."""
    edges: dict[tuple[Node, Node], None] = {}
    for object_type, name, version, job, source, source_version in rows:
        target, origin = (
            Node(object_type, name, version),
            _source_node(connection, source, source_version),
        )
        if job is None:
            edges[origin, target] = None
        else:
            edges[origin, Node("job", job)] = None
            edges[Node("job", job), target] = None
    return list(edges)


def _source_name(node: Node) -> str:
    """Return the source name that lineage rows contain for a node."""
    if node.object_type == "source":
        return f"{_SOURCE_PREFIX}{node.name}"
    for folder, object_type in _FOLDERS.items():
        if node.object_type == object_type:
            return f"{folder}/{node.name}"
    return node.name


def _source_node(connection: Connection, source: str, version: int | None) -> Node:
    """Return the node of a source in a lineage row."""
    if source.startswith(_SOURCE_PREFIX):
        return Node("source", source.removeprefix(_SOURCE_PREFIX))
    folder, _, name = source.partition("/")
    if folder in _FOLDERS and version is not None:
        return Node(_FOLDERS[folder], name, version)
    if version is None and not featuregroups.versions(connection, source):
        return Node("source", source)
    return Node("featuregroup", source, version)
