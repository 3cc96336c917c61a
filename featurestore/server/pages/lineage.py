"""Lineage page: the graph as a picture and as a table."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from featurestore.errors import InvalidArgument
from featurestore.server.context import Store
from featurestore.server.drawing.graph import draw
from featurestore.server.pages.rendering import page
from featurestore.server.records import lineage as records
from featurestore.server.records.lineage_graph import KINDS, Node, kind_label

router = APIRouter(prefix="/lineage")
Steps = Annotated[int, Query(ge=0, le=20)]


@router.get("")
def lineage_page(
    request: Request,
    store: Store,
    kind: Annotated[list[str] | None, Query()] = None,
    node: str = "",
    up: Steps = 3,
    down: Steps = 3,
) -> HTMLResponse:
    """Show the lineage graph of the store or around a node."""
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
        kinds=[each for each in KINDS if each != "feature" or _is_feature(focus)],
        kind_label=kind_label,
        selected_kinds=kinds,
    )


def _is_feature(focus: Node | None) -> bool:
    return focus is not None and focus.kind == "feature"
