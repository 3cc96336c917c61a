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
from featurestore.server.records.lineage_graph import KINDS, Node, called

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
            raise InvalidArgument(
                f"node={node!r} is none.",
                hint="node=featuregroup:weather@1 or feature:weather.temp@1",
            )
        graph = records.around(store, focus, up=up, down=down)
    else:
        graph = records.whole(store)
    broken = [] if focus is None else graph.behind(focus)
    kinds = kind or []
    graph = records.only(graph, kinds)
    alone, joined = records.apart(graph, focus)
    return page(
        request,
        "lineage.html",
        title="Lineage" if focus is None else f"Lineage of {focus.label}",
        graph=graph,
        picture=draw(joined, focus=focus, address="/lineage?node="),
        alone=alone,
        broken=broken,
        focus=focus,
        up=up,
        down=down,
        kinds=[each for each in KINDS if each != "feature" or _is_feature(focus)],
        called=called,
        chosen=kinds,
    )


def _is_feature(focus: Node | None) -> bool:
    return focus is not None and focus.kind == "feature"
