"""Lineage graphs of an entire store or around a node, optionally for single features."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.engine import Connection

from featurestore.lineage.column_origins import (
    ColumnOrigins,
    origins_of_plan,
    origins_of_query,
    origins_of_window_job,
)
from featurestore.lineage.origins import Dataset, OriginColumn
from featurestore.lineage.query_origins import QueryTable
from featurestore.model.job import SqlWork, WindowWork
from featurestore.model.names import parse_group_reference
from featurestore.registry import featuregroups, jobs, overview, training_datasets
from featurestore.registry.artifacts import feature_views
from featurestore.registry.overview import GroupFilter
from featurestore.server import lineage_graph as steps
from featurestore.server import models
from featurestore.server.lineage_graph import MAX_NODES, Graph, Node
from featurestore.store import FeatureStore

Edges = list[tuple[Node, Node]]
Arguments = ParamSpec("Arguments")
T = TypeVar("T")
# Limits the number of manifests that are opened.
_MAX_DATASETS = 100
# Nodes between an input and its output, which do not count as steps.
_UNCOUNTED_KINDS = ("job", "experiment")


class FeatureLineage:
    """Lineage of a single feature; ``columns`` maps datasets and views to derived column names.

    Retrieval plans, view definitions, window jobs and the queries of SQL jobs contain column names.
    In other cases, such as Python jobs, an edge refers to the complete group or dataset.
    """

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self.columns: dict[Node, tuple[str, ...]] = {}
        self.is_truncated = False  # more datasets pin the group than were opened
        self._required_datasets: set[Node] = (
            set()
        )  # every model of these datasets needs the feature

    def _query(
        self,
        query: Callable[Concatenate[Connection, Arguments], T],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> T:
        """Run a registry query and release its connection before files are read."""
        with self._store.session.registry.reading() as connection:
            return query(connection, *args, **kwargs)

    def sources(self, node: Node) -> Edges:
        """Return the incoming edges of a node."""
        if node.object_type != "feature":
            return [] if node.object_type == "job" else self._query(steps.sources, node)
        group, column = node.parts
        edges: Edges = []
        for source, target in self._query(steps.sources, Node("featuregroup", group, node.version)):
            origins = self._columns_of(target, source.name) if source.object_type == "job" else None
            if origins is None:
                edges.append((source, node))
                continue
            for origin in origins.columns.get(column, ()):
                edges.append((self._feature(origin), source))
                edges.append((source, node))
        return edges

    def results(self, node: Node) -> Edges:
        """Return the outgoing edges of a node."""
        if node.object_type == "feature":
            return [*self._groups(node), *self._datasets(node), *self._views(node)]
        if node.object_type == "job":
            return []  # the edges of a job are returned with the edges that lead to it
        edges = self._query(steps.results, node)
        return [
            edge for edge in edges if edge[1].object_type != "model" or self._needs_feature(edge[1])
        ]

    def _needs_feature(self, model: Node) -> bool:
        """Return True if the feature is an input of a model."""
        spec = models.get(self._store, model.name, model.version).spec
        dataset = Node("training_dataset", spec.dataset["name"], spec.dataset["version"])
        inputs = {column.name for column in spec.inputs}
        return dataset in self._required_datasets or not inputs.isdisjoint(
            self.columns.get(dataset, ())
        )

    def _feature(self, origin: OriginColumn) -> Node:
        """Return the feature node of an origin; without a version, the latest version is used."""
        group, version, _ = origin.dataset
        if version is None:
            version = self._query(featuregroups.versions, group)[-1]
        return Node("feature", f"{group}.{origin.column}", version)

    def _groups(self, node: Node) -> Edges:
        """Return the edges to the features that jobs compute from a feature."""
        group = Node("featuregroup", node.parts[0], node.version)
        edges: Edges = []
        for _, job in self._query(steps.results, group):
            if job.object_type != "job":
                continue
            for _, target in self._query(steps.results, job):
                origins = self._columns_of(target, job.name)
                if origins is None:
                    edges += [(node, job), (job, target)]
                    continue
                results = [
                    Node("feature", f"{target.name}.{name}", target.version)
                    for name in _derived_columns(node, origins)
                ]
                # A feature in a join or filter determines all rows of the group.
                if not results and _contains(node, origins.rows):
                    results = [target]
                for result in results:
                    edges += [(node, job), (job, result)]
        return edges

    def _columns_of(self, target: Node, job: str) -> ColumnOrigins | None:
        """Return the origins of the columns in a group, None if its job does not define them."""
        registered = self._query(jobs.find, job)
        if registered is None or target.object_type != "featuregroup" or target.version is None:
            return None
        spec = registered.spec
        if not isinstance(spec.work, WindowWork | SqlWork):
            return None
        tables = {}
        for name, text in spec.inputs.items():
            if "/" not in text and ":" not in text:  # neither a path nor a registered source
                dataset = Dataset(*parse_group_reference(text))
                tables[name] = QueryTable(dataset, self._read_columns(dataset))
        if isinstance(spec.work, WindowWork):
            return origins_of_window_job(spec.work, tables.values())
        names = self._query(featuregroups.feature_names, target.name, target.version)
        return origins_of_query(spec.work.code, tables, names)

    def _read_columns(self, dataset: Dataset) -> Sequence[str]:
        version = dataset.version
        if version is None:
            version = self._query(featuregroups.versions, dataset.source)[-1]
        return self._query(featuregroups.feature_names, dataset.source, version)

    def _datasets(self, node: Node) -> Edges:
        """Return the edges to the training datasets that contain a feature or join on it."""
        pins = self._query(training_datasets.datasets_pinning, node.parts[0], node.version or 1)
        pinned = list(dict.fromkeys((name, version) for name, version, _ in pins))
        self.is_truncated |= len(pinned) > _MAX_DATASETS
        edges: Edges = []
        for name, version in pinned[-_MAX_DATASETS:]:
            dataset = Node("training_dataset", name, version)
            manifest = self._store.get_training_dataset(name, version=version).manifest
            if manifest.plan is None:
                self._required_datasets.add(dataset)
                edges.append((node, dataset))
                continue
            origins = origins_of_plan(manifest.plan, self._read_columns)
            stored_columns = {column.name for column in manifest.columns}
            column_names = tuple(
                column for column in _derived_columns(node, origins) if column in stored_columns
            )
            if column_names:
                self.columns[dataset] = column_names
            if _contains(node, origins.rows):
                self._required_datasets.add(dataset)
            if column_names or dataset in self._required_datasets:
                edges.append((node, dataset))
        return edges

    def _views(self, node: Node) -> Edges:
        """Return the edges to the feature views that contain a feature."""
        group, column = node.parts
        edges: Edges = []
        for spec in self._query(feature_views.views_reading, group, node.version):
            origin = (group, node.version, column)
            column_names = [
                feature.name
                for feature in spec.features
                if (feature.group, feature.version, feature.column) == origin
            ]
            if column_names:
                view = Node("feature_view", spec.name, spec.version)
                self.columns[view] = tuple(column_names)
                edges.append((node, view))
        return edges


def _derived_columns(node: Node, origins: ColumnOrigins) -> list[str]:
    """Return the columns that are derived from a feature."""
    return [
        name for name, column_origins in origins.columns.items() if _contains(node, column_origins)
    ]


def _contains(node: Node, origins: Iterable[OriginColumn]) -> bool:
    """Return True if a feature is one of the origins."""
    group, column = node.parts
    for origin in origins:
        name, version, _ = origin.dataset
        if (name, origin.column) == (group, column) and version in (None, node.version):
            return True
    return False


def store_graph(store: FeatureStore, *, limit: int = MAX_NODES) -> Graph:
    """Return the lineage graph of the entire store, truncated to ``limit`` nodes."""
    with store.session.registry.reading() as connection:
        # One more row shows that the graph is truncated.
        rows = overview.lineage_edges(connection, limit=limit + 1)
        group_lines = overview.groups(connection, GroupFilter(), limit=limit)
        edges = steps.edges_of(connection, rows)
        edges += steps.training_inputs(connection, limit=limit)
        edges += steps.training_results(connection, limit=limit)
    nodes = dict.fromkeys(Node("featuregroup", line.name, line.version) for line in group_lines)
    for before, after in edges:
        nodes[before] = nodes[after] = None
    shown_nodes = sorted(nodes)[:limit]
    return Graph.from_edges(shown_nodes, edges, truncated=len(rows) > limit or len(nodes) > limit)


def graph_around(
    store: FeatureStore, focus: Node, *, up: int = 3, down: int = 3, limit: int = MAX_NODES
) -> Graph:
    """Return the graph around a node, ``up`` steps upstream and ``down`` steps downstream."""
    feature = FeatureLineage(store)
    if focus.object_type == "feature":
        before = _edges_within(focus, up, feature.sources, limit)
        after = _edges_within(focus, down, feature.results, limit)
    else:
        with store.session.registry.reading() as connection:
            before = _edges_within(focus, up, lambda node: steps.sources(connection, node), limit)
            after = _edges_within(focus, down, lambda node: steps.results(connection, node), limit)
    edges = [*before, *after]
    nodes = dict.fromkeys([focus])
    for source, target in edges:
        nodes[source] = nodes[target] = None
    is_truncated = feature.is_truncated or len(nodes) > limit
    return Graph.from_edges(
        list(nodes)[:limit], edges, truncated=is_truncated, columns=feature.columns
    )


def filter_kinds(graph: Graph, kinds: Collection[str]) -> Graph:
    """Return the graph with only some kinds of nodes; edges bridge the removed nodes."""
    if not kinds:
        return graph
    successors: dict[Node, list[Node]] = {}
    for source, target in graph.edges:
        successors.setdefault(source, []).append(target)
    nodes = [node for node in graph.nodes if node.object_type in kinds]
    edges = [
        (node, next_node)
        for node in nodes
        for next_node in _nearest_of_kinds(node, successors, kinds)
    ]
    return Graph.from_edges(nodes, edges, truncated=graph.truncated, columns=graph.columns)


def split_isolated(graph: Graph, focus: Node | None) -> tuple[list[Node], Graph]:
    """Split a graph into nodes without edges and the remaining graph."""
    nodes_with_edges = {node for edge in graph.edges for node in edge} | {focus}
    connected = [node for node in graph.nodes if node in nodes_with_edges]
    isolated = [node for node in graph.nodes if node not in nodes_with_edges]
    return isolated, Graph.from_edges(
        connected, graph.edges, truncated=graph.truncated, columns=graph.columns
    )


def _nearest_of_kinds(
    node: Node, successors: Mapping[Node, Iterable[Node]], kinds: Collection[str]
) -> list[Node]:
    """Return the nearest descendants that have one of the kinds."""
    nearest, visited, waiting = [], {node}, deque(successors.get(node, ()))
    while waiting:
        candidate = waiting.popleft()
        if candidate in visited:
            continue
        visited.add(candidate)
        if candidate.object_type in kinds:
            nearest.append(candidate)
        else:
            waiting.extend(successors.get(candidate, ()))
    return nearest


def _edges_within(
    focus: Node, depth: int, step: Callable[[Node], list[tuple[Node, Node]]], limit: int
) -> list[tuple[Node, Node]]:
    """Return the edges within ``depth`` steps of a node; jobs and experiments are not steps."""
    edges: list[tuple[Node, Node]] = []
    visited = {focus}
    waiting = deque([(focus, 0)])
    # The search stops one node beyond the limit, which marks the graph as truncated.
    while waiting and len(visited) <= limit:
        node, distance = waiting.popleft()
        if distance >= depth:
            continue
        for edge in step(node):
            edges.append(edge)
            neighbor = edge[0] if edge[1] == node else edge[1]
            if neighbor not in visited:
                visited.add(neighbor)
                waiting.append(
                    (
                        neighbor,
                        distance if neighbor.object_type in _UNCOUNTED_KINDS else distance + 1,
                    )
                )
    return edges
