"""The store as a whole: what there is, search, features, lineage."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from featurestore import __version__
from featurestore.model.durations import parse_duration
from featurestore.registry import features
from featurestore.registry.search_filters import SearchFilter
from featurestore.server.api.answers import REFUSALS, Items, Limit, Offset, items, record
from featurestore.server.context import Store
from featurestore.server.records import lineage, search
from featurestore.server.records.home import home
from featurestore.server.records.lineage_graph import KINDS, Node

router = APIRouter(tags=["store"], responses=REFUSALS)


@router.get("/store")
def describe(store: Store) -> dict[str, Any]:
    """Return how much there is, by kind, and what serves it."""
    return {"release": __version__, "engine": store.engine, "counts": home(store).counts}


@router.get("/search")
def find(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="A part of a text.")],
    kind: Annotated[search.Kind | Literal[""], Query(description="empty: any.")] = "",
    tag: Annotated[str, Query(max_length=500, description="A key, or key=value.")] = "",
    owner: Annotated[str, Query(max_length=500, description="The tag owner.")] = "",
    changed_within: Annotated[
        str, Query(pattern="^([0-9]{1,4}(min|h|d))?$", description="As 7d or 12h.")
    ] = "",
    limit: Limit = 100,
) -> Items:
    """Return where a text is: names, features, descriptions, tags; at most ``limit`` of each kind."""
    age = parse_duration(changed_within, argument="changed_within") if changed_within else None
    wanted = SearchFilter(tag=tag, owner=owner, changed_within=age)
    found = search.search(store, q, kind=kind, wanted=wanted, limit=limit)
    return Items(items=[record(asdict(each)) for each in found], next=None)


@router.get("/matches")
def list_matches(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="A part of a text.")],
    limit: Limit = 1000,
) -> Items:
    """Return what the library's own search finds, for clients."""
    found = store.search(q, limit=limit) if q.strip() else []
    return Items(items=[record(asdict(each)) for each in found], next=None)


@router.get("/features")
def list_features(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="A part of a name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """Return the columns of the latest version of every group."""

    def read(count: int, skipped: int) -> list[features.RegisteredFeature]:
        with store.session.registry.reading() as connection:
            if not q:
                return features.latest(connection, limit=skipped + count)[skipped:]
            return list(islice(features.containing(connection, q), skipped, skipped + count))

    return items(
        read, lambda each: {**asdict(each), "reference": each.reference}, limit=limit, offset=offset
    )


@router.get("/lineage")
def graph(
    store: Store,
    node: Annotated[
        str, Query(pattern=f"^(({'|'.join(KINDS)}):.+)?$", description="empty: the store.")
    ] = "",
    up: Annotated[int, Query(ge=0, le=20)] = 3,
    down: Annotated[int, Query(ge=0, le=20)] = 3,
) -> dict[str, Any]:
    """Return what was made from what: nodes by key, and edges from what was read to what was made."""
    focus = Node.parse(node)
    if focus is not None:
        found = lineage.around(store, focus, up=up, down=down)
    else:
        found = lineage.whole(store)
    nodes = [{"key": each.key, **asdict(each)} for each in found.nodes]
    edges = [{"from": before.key, "to": after.key} for before, after in found.edges]
    return {"nodes": nodes, "edges": edges, "complete": not found.cut}
