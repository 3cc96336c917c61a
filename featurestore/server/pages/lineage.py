"""What was made from what, as a picture to walk through and as a table."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from featurestore.errors import InvalidArgument
from featurestore.server.context import Store
from featurestore.server.drawing.graph import draw
from featurestore.server.pages.rendering import page
from featurestore.server.records import lineage as records
from featurestore.server.records.lineage import KINDS, Node

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
    """Show the graph of the store, or the part around a node."""
    focus = None
    if node:
        focus = Node.parse(node)
        if focus is None:
            raise InvalidArgument(f"node={node!r} is none.", hint="node=featuregroup:weather@1")
        graph = records.around(store, focus, up=up, down=down)
    else:
        graph = records.whole(store)
    kinds = kind or []
    graph = records.only(graph, kinds)
    return page(
        request,
        "lineage.html",
        title="Lineage",
        graph=graph,
        picture=draw(graph, focus=focus, address="/lineage?node="),
        focus=focus,
        up=up,
        down=down,
        kinds=KINDS,
        chosen=kinds,
    )
