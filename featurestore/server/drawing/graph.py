"""A graph in layers: what was read stands to the left of what was made from it.

A node's layer is the longest way to it from a node that nothing leads to; edges that close a ring
are left out of that count. Within a layer nodes stand near the middle of their neighbors, which
keeps most edges from crossing (the barycenter rule of Sugiyama's method).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from markupsafe import Markup

from featurestore.server.records.lineage import Graph, Node

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 200, 36, 70, 14, 8
_MOST_CHARACTERS = 25
_SWEEPS = 4


def draw(graph: Graph, *, focus: Node | None, address: str) -> Markup:
    """Return a graph as SVG; each node links to the graph around it, by ``address`` and its key."""
    layers = arrange(graph)
    places: dict[Node, tuple[int, int]] = {}
    for column, layer in enumerate(layers):
        for row, node in enumerate(layer):
            x = _MARGIN + column * (_WIDTH + _ACROSS)
            places[node] = (x, _MARGIN + row * (_HEIGHT + _DOWN))
    width = 2 * _MARGIN + len(layers) * (_WIDTH + _ACROSS) - _ACROSS
    height = 2 * _MARGIN + max(map(len, layers), default=0) * (_HEIGHT + _DOWN) - _DOWN
    parts = [
        Markup(
            '<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" '
            'height="{height}" role="group" aria-label="lineage of {count} things">'
        ).format(width=max(width, 1), height=max(height, 1), count=len(graph.nodes))
    ]
    for before, after in graph.edges:
        parts.append(_edge(places[before], places[after]))
    for node, place in places.items():
        parts.append(_node(node, place, address, is_focus=node == focus))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def arrange(graph: Graph) -> list[list[Node]]:
    """Return the layers of a graph, each from top to bottom.

    >>> a, b, c = (Node("featuregroup", name, 1) for name in "abc")
    >>> arrange(Graph((c, b, a), ((a, b), (b, c), (a, c)))) == [[a], [b], [c]]
    True
    """
    depths = _depths(graph)
    layers: list[list[Node]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for node in graph.nodes:
        layers[depths[node]].append(node)
    before: dict[Node, list[Node]] = {}
    after: dict[Node, list[Node]] = {}
    for left, right in graph.edges:
        before.setdefault(right, []).append(left)
        after.setdefault(left, []).append(right)
    for _ in range(_SWEEPS):
        for number in range(1, len(layers)):
            layers[number] = _by_neighbors(layers[number], before, layers[:number])
        for number in range(len(layers) - 2, -1, -1):
            layers[number] = _by_neighbors(layers[number], after, layers[number + 1 :])
    return layers


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
    layer: Sequence[Node], neighbors: Mapping[Node, Iterable[Node]], others: Iterable[list[Node]]
) -> list[Node]:
    heights: dict[Node, float] = {}
    for other in others:
        for row, node in enumerate(other):
            heights[node] = row
    middles = {}
    for row, node in enumerate(layer):
        known = [heights[each] for each in neighbors.get(node, ()) if each in heights]
        middles[node] = sum(known) / len(known) if known else float(row)
    return sorted(layer, key=lambda node: middles[node])


def _edge(before: tuple[int, int], after: tuple[int, int]) -> Markup:
    left, top = before[0] + _WIDTH, before[1] + _HEIGHT // 2
    right, bottom = after[0], after[1] + _HEIGHT // 2
    bend = max(abs(right - left) // 2, 30)
    return Markup('<path d="M{} {}C{} {} {} {} {} {}"/>').format(
        left, top, left + bend, top, right - bend, bottom, right, bottom
    )


def _node(node: Node, place: tuple[int, int], address: str, *, is_focus: bool) -> Markup:
    x, y = place
    label = node.label
    if len(label) > _MOST_CHARACTERS:
        label = "…" + label[1 - _MOST_CHARACTERS :]
    focus = " focus" if is_focus else ""
    return Markup(
        '<a href="{address}{key}"><g class="node {kind}{focus}"><title>{kind} {whole}</title>'
        '<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
        '<text x="{left}" y="{middle}">{label}</text></g></a>'
    ).format(
        address=address,
        key=quote(node.key, safe=":@"),
        kind=node.kind.replace("_", "-"),
        focus=focus,
        whole=node.label,
        x=x,
        y=y,
        width=_WIDTH,
        height=_HEIGHT,
        left=x + 10,
        middle=y + _HEIGHT * 0.62,
        label=label,
    )
