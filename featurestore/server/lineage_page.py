"""Lineage page and REST route, and the layered layout of lineage graphs (Sugiyama's method)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from featurestore.errors import InvalidArgument
from featurestore.server import lineage as records
from featurestore.server.guard import Store
from featurestore.server.lineage_graph import KINDS, Graph, Node, type_label
from featurestore.server.rendering import page
from featurestore.server.rest import REFUSALS
from featurestore.server.routes import Router

_WIDTH, _HEIGHT, _LAYER_GAP, _ITEM_GAP, _MARGIN = 210, 44, 70, 12, 8
_MAX_LABEL_LENGTH = 24
_ICONS = {
    "source": "plug",
    "job": "calendar-clock",
    "featuregroup": "layers",
    "feature": "variable",
    "feature_view": "columns-3",
    "training_dataset": "database",
    "experiment": "flask-conical",
    "model": "box",
}
_SWEEPS = 4
api = Router(tags=["store"], responses=REFUSALS)
pages = Router(prefix="/lineage")
Steps = Annotated[int, Query(ge=0, le=20)]


@dataclass(frozen=True, order=True)
class Bend:
    """A virtual node that an edge has in each layer it passes through."""

    before: Node
    after: Node
    layer: int


Item = Node | Bend
Links = dict[Item, list[Item]]


def draw(graph: Graph, *, focus: Node | None, address: str) -> Markup:
    """Draw a graph as SVG; each node links to ``address`` followed by its key.

    The layer of a node is the length of the longest path to it from a node without sources; edges
    that close a cycle are ignored. An edge across several layers has a bend in each of them, with
    its own position between the nodes, so that it does not cross nodes. Nodes and bends within a
    layer are ordered by the barycenter of their neighbors, which avoids most crossings.
    """
    layers, before, after = _arrange_with_bends(graph)
    middles = _place_items(layers, before)
    lowest = max((middles[layer[-1]] for layer in layers if layer), default=0.0)
    width = 2 * _MARGIN + len(layers) * (_WIDTH + _LAYER_GAP) - _LAYER_GAP
    elements = [
        Markup(
            '<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" '
            'height="{height}" role="group" aria-label="lineage of {count} nodes">'
        ).format(
            width=max(width, 1),
            height=round(lowest + _HEIGHT / 2 + _MARGIN),
            count=len(graph.nodes),
        )
    ]
    columns: dict[Item, int] = {}
    for column, layer in enumerate(layers):
        columns.update(dict.fromkeys(layer, _MARGIN + column * (_WIDTH + _LAYER_GAP)))
    elements += [
        _draw_edge((columns[start], middles[start]), (columns[end], middles[end]), end)
        for start, ends in after.items()
        for end in ends
    ]
    for node in graph.nodes:
        position = columns[node], middles[node]
        elements.append(_draw_node(node, position, address, is_focus=node == focus))
    elements.append(Markup("</svg>"))
    return Markup("").join(elements)


def arrange(graph: Graph) -> list[list[Node]]:
    """Return the layers of a graph, with the nodes in each from top to bottom.

    >>> a, b, c = (Node("featuregroup", name, 1) for name in "abc")
    >>> arrange(Graph((c, b, a), ((a, b), (b, c), (a, c)))) == [[a], [b], [c]]
    True
    """
    layers, _, _ = _arrange_with_bends(graph)
    return [[item for item in layer if isinstance(item, Node)] for layer in layers]


def _arrange_with_bends(graph: Graph) -> tuple[list[list[Item]], Links, Links]:
    """Return the layers with bends, and the predecessors and successors of each item."""
    depths = _layer_depths(graph)
    layers: list[list[Item]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for node in graph.nodes:
        layers[depths[node]].append(node)
    before: Links = {}
    after: Links = {}
    for source, target in graph.edges:
        path: list[Item] = [source]
        for layer in range(depths[source] + 1, depths[target]):
            bend = Bend(source, target, layer)
            layers[layer].append(bend)
            path.append(bend)
        path.append(target)
        for start, end in pairwise(path):
            after.setdefault(start, []).append(end)
            before.setdefault(end, []).append(start)
    for _ in range(_SWEEPS):
        for number in range(1, len(layers)):
            layers[number] = _order_by_neighbors(layers[number], before, layers[:number])
        for number in range(len(layers) - 2, -1, -1):
            layers[number] = _order_by_neighbors(layers[number], after, layers[number + 1 :])
    return layers, before, after


def _layer_depths(graph: Graph) -> dict[Node, int]:
    """Return the layer of each node, computed by a depth-first search over its sources."""
    sources: dict[Node, list[Node]] = {}
    for before, after in graph.edges:
        sources.setdefault(after, []).append(before)
    depths: dict[Node, int] = {}
    # The nodes on the current path; an edge to such a node closes a cycle and is ignored. The
    # search is iterative, since a lineage may be deeper than Python's recursion limit.
    open_nodes: set[Node] = set()
    for start in graph.nodes:
        waiting = [(start, False)]
        while waiting:
            node, is_expanded = waiting.pop()
            if is_expanded:
                open_nodes.discard(node)
                known = [depths[source] for source in sources.get(node, ()) if source in depths]
                depths[node] = max(known, default=-1) + 1
            elif node not in depths and node not in open_nodes:
                open_nodes.add(node)
                # The node is visited again after its sources, when their layers are known.
                waiting.append((node, True))
                for source in sources.get(node, ()):
                    if source not in open_nodes:
                        waiting.append((source, False))
    return depths


def _order_by_neighbors(
    layer: Sequence[Item],
    neighbors: Mapping[Item, Iterable[Item]],
    placed_layers: Iterable[list[Item]],
) -> list[Item]:
    """Sort a layer by the barycenters of the neighbors in placed layers."""
    heights: dict[Item, float] = {}
    for placed_layer in placed_layers:
        for row, item in enumerate(placed_layer):
            heights[item] = row
    middles = {}
    for row, item in enumerate(layer):
        known = [heights[neighbor] for neighbor in neighbors.get(item, ()) if neighbor in heights]
        # Items without placed neighbors keep their row; the sort is stable.
        middles[item] = sum(known) / len(known) if known else float(row)
    return sorted(layer, key=lambda item: middles[item])


def _place_items(layers: Iterable[list[Item]], before: Links) -> dict[Item, float]:
    """Return the vertical center of each item: close to its predecessors, below the item above."""
    heights: dict[Item, float] = {}
    for layer in layers:
        free = float(_MARGIN)
        for item in layer:
            half = _HEIGHT / 2 if isinstance(item, Node) else 0.0
            known = [heights[neighbor] for neighbor in before.get(item, ()) if neighbor in heights]
            preferred = sum(known) / len(known) if known else 0.0
            heights[item] = max(preferred, free + half)
            free = heights[item] + half + _ITEM_GAP
    return heights


def _draw_edge(before: tuple[int, float], after: tuple[int, float], end: Item) -> Markup:
    """Draw the line between two items; a line to a bend continues through its layer."""
    start_x, end_x = before[0] + _WIDTH, after[0]
    bend = max(abs(end_x - start_x) // 2, 30)
    line = Markup("M{} {:.0f}C{} {:.0f} {} {:.0f} {} {:.0f}").format(
        start_x, before[1], start_x + bend, before[1], end_x - bend, after[1], end_x, after[1]
    )
    if isinstance(end, Bend):
        line += Markup("h{}").format(_WIDTH)
    return Markup('<path d="{}"/>').format(line)


def _draw_node(node: Node, position: tuple[int, float], address: str, *, is_focus: bool) -> Markup:
    """Draw a node as a link with its kind and label."""
    x, middle = position
    label = node.label
    if len(label) > _MAX_LABEL_LENGTH:
        # The end of a path distinguishes it better than its beginning.
        label = "…" + label[1 - _MAX_LABEL_LENGTH :]
    focus = " focus" if is_focus else ""
    return Markup(
        '<a href="{address}{key}"><g class="node {css}{focus}"><title>{kind} {whole}</title>'
        '<rect x="{x}" y="{y:.0f}" width="{width}" height="{height}" rx="5"/>'
        '<use class="icon" href="/static/icons.svg#{icon}" x="{icon_x}" y="{icon_y:.0f}" width="18" '
        'height="18"/><text class="kind" x="{left}" y="{upper:.0f}">{kind}</text>'
        '<text x="{left}" y="{lower:.0f}">{label}</text></g></a>'
    ).format(
        address=address,
        key=quote(node.key, safe=":@"),
        css=node.object_type.replace("_", "-"),
        focus=focus,
        kind=type_label(node.object_type),
        whole=node.label,
        x=x,
        y=middle - _HEIGHT / 2,
        width=_WIDTH,
        height=_HEIGHT,
        icon=_ICONS[node.object_type],
        icon_x=x + 10,
        icon_y=middle - 9,
        left=x + 38,
        upper=middle - 6,
        lower=middle + 12,
        label=label,
    )


@api.get("/lineage")
def graph(
    store: Store,
    node: Annotated[
        str, Query(pattern=f"^(({'|'.join(KINDS)}):.+)?$", description="empty: the entire store.")
    ] = "",
    up: Annotated[int, Query(ge=0, le=20)] = 3,
    down: Annotated[int, Query(ge=0, le=20)] = 3,
) -> dict[str, Any]:
    """Return the lineage graph: nodes, and edges from inputs to outputs by key."""
    focus = Node.parse(node)
    if focus is not None:
        lineage_graph = records.graph_around(store, focus, up=up, down=down)
    else:
        lineage_graph = records.store_graph(store)
    nodes = [
        {
            "key": graph_node.key,
            "kind": graph_node.object_type,
            "name": graph_node.name,
            "version": graph_node.version,
        }
        for graph_node in lineage_graph.nodes
    ]
    edges = [{"from": before.key, "to": after.key} for before, after in lineage_graph.edges]
    return {"nodes": nodes, "edges": edges, "complete": not lineage_graph.truncated}


@pages.get("")
def lineage_page(
    request: Request,
    store: Store,
    kind: Annotated[list[str] | None, Query()] = None,
    node: str = "",
    up: Steps = 3,
    down: Steps = 3,
) -> HTMLResponse:
    """Display the lineage graph of the entire store or around a node."""
    focus = None
    if node:
        focus = Node.parse(node)
        if focus is None:
            raise InvalidArgument(
                f"Invalid node {node!r}.",
                hint="node=featuregroup:weather@1 or feature:weather.temp@1",
            )
        graph = records.graph_around(store, focus, up=up, down=down)
    else:
        graph = records.store_graph(store)
    affected = [] if focus is None else graph.descendants(focus)
    kinds = kind or []
    graph = records.filter_kinds(graph, kinds)
    isolated, connected = records.split_isolated(graph, focus)
    is_feature = focus is not None and focus.object_type == "feature"
    return page(
        request,
        "lineage.html",
        title="Lineage" if focus is None else f"Lineage of {focus.label}",
        graph=graph,
        picture=draw(connected, focus=focus, address="/lineage?node="),
        isolated=isolated,
        affected=affected,
        focus=focus,
        up=up,
        down=down,
        kinds=[kind_name for kind_name in KINDS if kind_name != "feature" or is_feature],
        type_label=type_label,
        selected_kinds=kinds,
    )
