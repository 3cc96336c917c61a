"""Lineage graphs of a store, from sources to models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from featurestore.registry import overview
from featurestore.registry.overview import GroupFilter
from featurestore.server.records import lineage_steps as steps
from featurestore.server.records.feature_steps import FeatureSteps
from featurestore.server.records.lineage_graph import MAX_NODES, Graph, Node
from featurestore.store import FeatureStore

# Nodes between an input and its output do not count as steps.
_UNCOUNTED_KINDS = ("job", "experiment")


def store_graph(store: FeatureStore, *, limit: int = MAX_NODES) -> Graph:
    """Return the graph of the store, truncated to ``limit`` nodes."""
    with store.session.registry.reading() as connection:
        rows = overview.edges(connection, limit=limit + 1)
        lone_groups = overview.groups(connection, GroupFilter(), limit=limit)
        edges = steps.edges_of(connection, rows) + steps.trainings(connection, limit=limit)
    nodes = dict.fromkeys(Node("featuregroup", line.name, line.version) for line in lone_groups)
    for before, after in edges:
        nodes[before] = nodes[after] = None
    shown_nodes = sorted(nodes)[:limit]
    return Graph.from_edges(shown_nodes, edges, truncated=len(rows) > limit or len(nodes) > limit)


def graph_around(
    store: FeatureStore, focus: Node, *, up: int = 3, down: int = 3, limit: int = MAX_NODES
) -> Graph:
    """Return the graph around a node: ``up`` steps upstream and ``down`` steps downstream."""
    feature = FeatureSteps(store)
    if focus.kind == "feature":
        before = _walk(focus, up, feature.sources, limit)
        after = _walk(focus, down, feature.results, limit)
    else:
        with store.session.registry.reading() as connection:
            before = _walk(focus, up, lambda node: steps.sources(connection, node), limit)
            after = _walk(focus, down, lambda node: steps.results(connection, node), limit)
    edges = [*before, *after]
    nodes = dict.fromkeys([focus])
    for source, target in edges:
        nodes[source] = nodes[target] = None
    is_truncated = feature.is_truncated or len(nodes) > limit
    return Graph.from_edges(
        list(nodes)[:limit], edges, truncated=is_truncated, columns=feature.columns
    )


def filter_kinds(graph: Graph, kinds: Collection[str]) -> Graph:
    """Return the graph of some kinds of nodes; edges bridge the removed nodes."""
    if not kinds:
        return graph
    following: dict[Node, list[Node]] = {}
    for source, target in graph.edges:
        following.setdefault(source, []).append(target)
    nodes = [node for node in graph.nodes if node.kind in kinds]
    edges = [
        (node, next_node)
        for node in nodes
        for next_node in _nearest_of_kinds(node, following, kinds)
    ]
    return Graph.from_edges(nodes, edges, truncated=graph.truncated, columns=graph.columns)


def split_isolated(graph: Graph, focus: Node | None) -> tuple[list[Node], Graph]:
    """Return the nodes without edges, and the graph without them."""
    touched = {node for edge in graph.edges for node in edge} | {focus}
    connected = [node for node in graph.nodes if node in touched]
    isolated = [node for node in graph.nodes if node not in touched]
    return isolated, Graph.from_edges(
        connected, graph.edges, truncated=graph.truncated, columns=graph.columns
    )


def _nearest_of_kinds(
    node: Node, following: Mapping[Node, Iterable[Node]], kinds: Collection[str]
) -> list[Node]:
    """Return the nearest descendants of some kinds."""
    nearest, visited, waiting = [], {node}, deque(following.get(node, ()))
    while waiting:
        candidate = waiting.popleft()
        if candidate in visited:
            continue
        visited.add(candidate)
        if candidate.kind in kinds:
            nearest.append(candidate)
        else:
            waiting.extend(following.get(candidate, ()))
    return nearest


def _walk(
    focus: Node, depth: int, step: Callable[[Node], list[tuple[Node, Node]]], limit: int
) -> list[tuple[Node, Node]]:
    """Return the edges within some steps of a node, without counting jobs and experiments."""
    edges: list[tuple[Node, Node]] = []
    visited = {focus}
    waiting = deque([(focus, 0)])
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
                    (neighbor, distance if neighbor.kind in _UNCOUNTED_KINDS else distance + 1)
                )
    return edges
