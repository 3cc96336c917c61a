"""Lineage as a graph: from sources over groups and datasets to experiments and models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from featurestore.model.paths import FEATUREVIEWS, MODELS, TRAININGDATASETS
from featurestore.registry import featuregroups, overview
from featurestore.registry.overview import GroupFilter
from featurestore.store import FeatureStore

KINDS = (
    "source",
    "job",
    "featuregroup",
    "feature_view",
    "training_dataset",
    "experiment",
    "model",
)
# What stands between what was read and what was made is no step of a walk.
_BETWEEN = ("job", "experiment")
MOST_NODES = 400
_SOURCE = "source:"
# What lineage calls the sources that are no groups: their folders below the location.
_FOLDERS = {
    FEATUREVIEWS: "feature_view",
    TRAININGDATASETS: "training_dataset",
    MODELS: "model",
}
_PAGES = {
    "featuregroup": "/groups/{name}/{version}",
    "feature_view": "/views/{name}/{version}",
    "training_dataset": "/datasets/{name}/{version}",
    "model": "/models/{name}/{version}",
    "job": "/jobs/{name}",
    "experiment": "/experiments?name={name}",
}


@dataclass(frozen=True, order=True)
class Node:
    """Something that data came from or went to; jobs, experiments and sources have no version."""

    kind: str
    name: str
    version: int | None = None

    @property
    def key(self) -> str:
        """The node as an address has it: ``featuregroup:weather@1``."""
        return f"{self.kind}:{self.label}"

    @property
    def label(self) -> str:
        """Name and version."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def page(self) -> str | None:
        """The page of it, None where it has none."""
        pattern = _PAGES.get(self.kind)
        return None if pattern is None else pattern.format(name=self.name, version=self.version)

    @classmethod
    def parse(cls, key: str) -> Node | None:
        """Return the node of a key, None where it is none.

        >>> Node.parse("featuregroup:weather@1")
        Node(kind='featuregroup', name='weather', version=1)
        """
        kind, _, label = key.partition(":")
        if kind not in KINDS or not label:
            return None
        name, _, version = label.rpartition("@")
        if name and version.isdecimal():
            return cls(kind, name, int(version))
        return cls(kind, label)


@dataclass(frozen=True)
class Graph:
    """Nodes, and edges from what was read to what was made. ``cut``: more than fits was left out."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[Node, Node], ...]
    cut: bool = False


def whole(store: FeatureStore, *, limit: int = MOST_NODES) -> Graph:
    """Return the graph of the store, or as much of it as fits a page."""
    with store.session.registry.reading() as connection:
        rows = overview.edges(connection, limit=limit + 1)
        alone = overview.groups(connection, GroupFilter(), limit=limit)
        edges = _edges(connection, rows) + _trainings(connection, limit=limit)
    nodes = dict.fromkeys(Node("featuregroup", line.name, line.version) for line in alone)
    for before, after in edges:
        nodes[before] = nodes[after] = None
    kept = sorted(nodes)[:limit]
    return _graph(kept, edges, cut=len(rows) > limit or len(nodes) > limit)


def around(
    store: FeatureStore, focus: Node, *, up: int = 3, down: int = 3, limit: int = MOST_NODES
) -> Graph:
    """Return what a node was made from, ``up`` steps back, and what is made from it."""
    with store.session.registry.reading() as connection:
        before = _walk(focus, up, lambda node: _sources(connection, node), limit)
        after = _walk(focus, down, lambda node: _results(connection, node), limit)
    edges = [*before, *after]
    nodes = dict.fromkeys([focus])
    for left, right in edges:
        nodes[left] = nodes[right] = None
    return _graph(list(nodes)[:limit], edges, cut=len(nodes) > limit)


def only(graph: Graph, kinds: Collection[str]) -> Graph:
    """Return a graph with some kinds of nodes; edges go on through those left out."""
    if not kinds:
        return graph
    following: dict[Node, list[Node]] = {}
    for before, after in graph.edges:
        following.setdefault(before, []).append(after)
    nodes = [node for node in graph.nodes if node.kind in kinds]
    edges = []
    for node in nodes:
        for reached in _reach(node, following, kinds):
            edges.append((node, reached))
    return _graph(nodes, edges, cut=graph.cut)


def _reach(
    node: Node, following: Mapping[Node, Iterable[Node]], kinds: Collection[str]
) -> list[Node]:
    """Return the nearest nodes of some kinds behind a node."""
    found, seen, waiting = [], {node}, deque(following.get(node, ()))
    while waiting:
        each = waiting.popleft()
        if each in seen:
            continue
        seen.add(each)
        if each.kind in kinds:
            found.append(each)
        else:
            waiting.extend(following.get(each, ()))
    return found


def _walk(
    focus: Node, depth: int, step: Callable[[Node], list[tuple[Node, Node]]], limit: int
) -> list[tuple[Node, Node]]:
    """Return the edges within some steps of a node, jobs and experiments not counted."""
    edges: list[tuple[Node, Node]] = []
    seen = {focus}
    waiting = deque([(focus, 0)])
    while waiting and len(seen) <= limit:
        node, steps = waiting.popleft()
        if steps >= depth:
            continue
        for edge in step(node):
            edges.append(edge)
            other = edge[0] if edge[1] == node else edge[1]
            if other not in seen:
                seen.add(other)
                waiting.append((other, steps if other.kind in _BETWEEN else steps + 1))
    return edges


def _sources(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the edges that lead to a node."""
    if node.kind == "source":
        return []
    column = "job" if node.kind == "job" else "name"
    rows = overview.edges(connection, limit=MOST_NODES, of={column: node.name})
    edges = _edges(connection, rows)
    if node.kind == "experiment":
        edges += _trainings(connection, experiment=node.name)
    elif node.kind == "model":
        edges += _trainings(connection, model=node.name)
    return [edge for edge in edges if edge[1] == node]


def _results(connection: Connection, node: Node) -> list[tuple[Node, Node]]:
    """Return the edges that leave a node."""
    if node.kind == "job":
        rows = overview.edges(connection, limit=MOST_NODES, of={"job": node.name})
    else:
        name = _source_of(node)
        rows = overview.edges(connection, limit=MOST_NODES, of={"source": name})
        if not rows and node.kind == "source":
            rows = overview.edges(connection, limit=MOST_NODES, of={"source": node.name})
    edges = _edges(connection, rows)
    if node.kind == "experiment":
        edges += _trainings(connection, experiment=node.name)
    elif node.kind == "training_dataset":
        edges += _trainings(connection, dataset=node.name)
    return [edge for edge in edges if edge[0] == node]


def _trainings(
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


def _edges(
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


def _graph(nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]], *, cut: bool) -> Graph:
    kept = list(nodes)
    inside = set(kept)
    between = []
    for before, after in dict.fromkeys(edges):
        if before in inside and after in inside and before != after:
            between.append((before, after))
    return Graph(tuple(kept), tuple(between), cut)
