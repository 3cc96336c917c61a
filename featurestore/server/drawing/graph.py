"""A graph in layers: what was read stands to the left of what was made from it.

A node's layer is the longest way to it from a node that nothing leads to; edges that close a ring
are left out of that count. An edge over several layers bends in each of them, at a place of its own
between the nodes, so that it passes beside them. Within a layer nodes and bends stand near the
middle of their neighbors, which keeps most edges from crossing (the barycenter rule of Sugiyama's
method).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote

from markupsafe import Markup

from featurestore.server.records.lineage_graph import Graph, Node, called

_WIDTH, _HEIGHT, _ACROSS, _GAP, _MARGIN = 210, 44, 70, 12, 8
_MOST_CHARACTERS = 27
_SWEEPS = 4


@dataclass(frozen=True, order=True)
class Bend:
    """Where an edge passes a layer."""

    before: Node
    after: Node
    layer: int


Item = Node | Bend
Links = dict[Item, list[Item]]


def draw(graph: Graph, *, focus: Node | None, address: str) -> Markup:
    """Return a graph as SVG; each node links to the graph around it, by ``address`` and its key."""
    layers, before, after = _arranged(graph)
    middles = _middles(layers, before)
    lowest = max((middles[layer[-1]] for layer in layers if layer), default=0.0)
    width = 2 * _MARGIN + len(layers) * (_WIDTH + _ACROSS) - _ACROSS
    parts = [
        Markup(
            '<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" '
            'height="{height}" role="group" aria-label="lineage of {count} things">'
        ).format(
            width=max(width, 1),
            height=round(lowest + _HEIGHT / 2 + _MARGIN),
            count=len(graph.nodes),
        )
    ]
    columns: dict[Item, int] = {}
    for column, layer in enumerate(layers):
        columns.update(dict.fromkeys(layer, _MARGIN + column * (_WIDTH + _ACROSS)))
    for start, ends in after.items():
        for end in ends:
            parts.append(_edge((columns[start], middles[start]), (columns[end], middles[end]), end))
    for node in graph.nodes:
        place = columns[node], middles[node]
        parts.append(_node(node, place, address, is_focus=node == focus))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def arrange(graph: Graph) -> list[list[Node]]:
    """Return the layers of a graph, each from top to bottom.

    >>> a, b, c = (Node("featuregroup", name, 1) for name in "abc")
    >>> arrange(Graph((c, b, a), ((a, b), (b, c), (a, c)))) == [[a], [b], [c]]
    True
    """
    layers, _, _ = _arranged(graph)
    return [_nodes_of(layer) for layer in layers]


def _arranged(graph: Graph) -> tuple[list[list[Item]], Links, Links]:
    """Return the layers with the bends of edges, and what stands before and after each item."""
    depths = _depths(graph)
    layers: list[list[Item]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for node in graph.nodes:
        layers[depths[node]].append(node)
    before: Links = {}
    after: Links = {}
    for left, right in graph.edges:
        way: list[Item] = [left]
        for layer in range(depths[left] + 1, depths[right]):
            bend = Bend(left, right, layer)
            layers[layer].append(bend)
            way.append(bend)
        way.append(right)
        for start, end in pairwise(way):
            after.setdefault(start, []).append(end)
            before.setdefault(end, []).append(start)
    for _ in range(_SWEEPS):
        for number in range(1, len(layers)):
            layers[number] = _by_neighbors(layers[number], before, layers[:number])
        for number in range(len(layers) - 2, -1, -1):
            layers[number] = _by_neighbors(layers[number], after, layers[number + 1 :])
    return layers, before, after


def _nodes_of(layer: Iterable[Item]) -> list[Node]:
    return [item for item in layer if isinstance(item, Node)]


def _depths(graph: Graph) -> dict[Node, int]:
    """Return the layer of each node, by a walk that comes back to a node when its sources are done."""
    sources: dict[Node, list[Node]] = {}
    for before, after in graph.edges:
        sources.setdefault(after, []).append(before)
    depths: dict[Node, int] = {}
    open_nodes: set[Node] = set()
    for start in graph.nodes:
        waiting = [(start, False)]
        while waiting:
            node, done = waiting.pop()
            if done:
                open_nodes.discard(node)
                known = [depths[each] for each in sources.get(node, ()) if each in depths]
                depths[node] = max(known, default=-1) + 1
            elif node not in depths and node not in open_nodes:
                open_nodes.add(node)
                waiting.append((node, True))
                for each in sources.get(node, ()):
                    if each not in open_nodes:
                        waiting.append((each, False))
    return depths


def _by_neighbors(
    layer: Sequence[Item], neighbors: Mapping[Item, Iterable[Item]], others: Iterable[list[Item]]
) -> list[Item]:
    heights: dict[Item, float] = {}
    for other in others:
        for row, item in enumerate(other):
            heights[item] = row
    middles = {}
    for row, item in enumerate(layer):
        known = [heights[each] for each in neighbors.get(item, ()) if each in heights]
        middles[item] = sum(known) / len(known) if known else float(row)
    return sorted(layer, key=lambda item: middles[item])


def _middles(layers: Iterable[list[Item]], before: Links) -> dict[Item, float]:
    """Return the height of each item: that of what leads to it, or below its upper neighbor."""
    found: dict[Item, float] = {}
    for layer in layers:
        free = float(_MARGIN)
        for item in layer:
            half = _HEIGHT / 2 if isinstance(item, Node) else 0.0
            known = [found[each] for each in before.get(item, ()) if each in found]
            wanted = sum(known) / len(known) if known else 0.0
            found[item] = max(wanted, free + half)
            free = found[item] + half + _GAP
    return found


def _edge(before: tuple[int, float], after: tuple[int, float], end: Item) -> Markup:
    """Return the line from an item to the next one; through a bend it goes on at its height."""
    left, right = before[0] + _WIDTH, after[0]
    bend = max(abs(right - left) // 2, 30)
    line = Markup("M{} {:.0f}C{} {:.0f} {} {:.0f} {} {:.0f}").format(
        left, before[1], left + bend, before[1], right - bend, after[1], right, after[1]
    )
    if isinstance(end, Bend):
        line += Markup("h{}").format(_WIDTH)
    return Markup('<path d="{}"/>').format(line)


def _node(node: Node, place: tuple[int, float], address: str, *, is_focus: bool) -> Markup:
    x, middle = place
    label = node.label
    if len(label) > _MOST_CHARACTERS:
        label = "…" + label[1 - _MOST_CHARACTERS :]
    focus = " focus" if is_focus else ""
    kind = called(node.kind)
    return Markup(
        '<a href="{address}{key}"><g class="node {css}{focus}"><title>{kind} {whole}</title>'
        '<rect x="{x}" y="{y:.0f}" width="{width}" height="{height}" rx="5"/>'
        '<text class="kind" x="{left}" y="{upper:.0f}">{kind}</text>'
        '<text x="{left}" y="{lower:.0f}">{label}</text></g></a>'
    ).format(
        address=address,
        key=quote(node.key, safe=":@"),
        css=node.kind.replace("_", "-"),
        focus=focus,
        kind=kind,
        whole=node.label,
        x=x,
        y=middle - _HEIGHT / 2,
        width=_WIDTH,
        height=_HEIGHT,
        left=x + 10,
        upper=middle - 6,
        lower=middle + 12,
        label=label,
    )
