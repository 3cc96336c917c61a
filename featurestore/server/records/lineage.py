"""Lineage as a graph: from sources over groups and datasets to experiments and models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from featurestore.registry import overview
from featurestore.registry.overview import GroupFilter
from featurestore.server.records import lineage_steps as steps
from featurestore.server.records.feature_steps import FeatureSteps
from featurestore.server.records.lineage_graph import MOST_NODES, Graph, Node
from featurestore.store import FeatureStore

# What stands between what was read and what was made is no step of a walk.
_BETWEEN = ("job", "experiment")


def whole(store: FeatureStore, *, limit: int = MOST_NODES) -> Graph:
    """Return the graph of the store, or as much of it as fits a page."""
    with store.session.registry.reading() as connection:
        rows = overview.edges(connection, limit=limit + 1)
        alone = overview.groups(connection, GroupFilter(), limit=limit)
        edges = steps.edges_of(connection, rows) + steps.trainings(connection, limit=limit)
    nodes = dict.fromkeys(Node("featuregroup", line.name, line.version) for line in alone)
    for before, after in edges:
        nodes[before] = nodes[after] = None
    kept = sorted(nodes)[:limit]
    return Graph.of(kept, edges, cut=len(rows) > limit or len(nodes) > limit)


def around(
    store: FeatureStore, focus: Node, *, up: int = 3, down: int = 3, limit: int = MOST_NODES
) -> Graph:
    """Return what a node was made from, ``up`` steps back, and what is made from it."""
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
    for left, right in edges:
        nodes[left] = nodes[right] = None
    is_cut = feature.is_cut or len(nodes) > limit
    return Graph.of(list(nodes)[:limit], edges, cut=is_cut, columns=feature.columns)


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
    return Graph.of(nodes, edges, cut=graph.cut, columns=graph.columns)


def apart(graph: Graph, focus: Node | None) -> tuple[list[Node], Graph]:
    """Return the nodes of a graph that no edge touches, and the graph without them."""
    touched = {node for edge in graph.edges for node in edge} | {focus}
    joined = [node for node in graph.nodes if node in touched]
    alone = [node for node in graph.nodes if node not in touched]
    return alone, Graph.of(joined, graph.edges, cut=graph.cut, columns=graph.columns)


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
