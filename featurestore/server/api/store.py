"""REST routes of the store: counts, search, features, lineage."""

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
    """Return the release, the engine and the number of objects by kind."""
    return {"release": __version__, "engine": store.engine, "counts": home(store).counts}


@router.get("/search")
def find(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Substring to find.")],
    kind: Annotated[search.Kind | Literal[""], Query(description="empty: any.")] = "",
    tag: Annotated[str, Query(max_length=500, description="key or key=value.")] = "",
    owner: Annotated[str, Query(max_length=500, description="Value of the tag owner.")] = "",
    changed_within: Annotated[
        str, Query(pattern="^([0-9]{1,4}(min|h|d))?$", description="Duration: 7d or 12h.")
    ] = "",
    limit: Limit = 100,
) -> Items:
    """Search names, features, descriptions and tags; at most ``limit`` matches of each kind."""
    age = parse_duration(changed_within, argument="changed_within") if changed_within else None
    search_filter = SearchFilter(tag=tag, owner=owner, changed_within=age)
    results = search.search(store, q, kind=kind, filters=search_filter, limit=limit)
    return Items(items=[record(asdict(each)) for each in results], next=None)


@router.get("/matches")
def list_matches(
    store: Store,
    q: Annotated[str, Query(min_length=1, max_length=200, description="Substring to find.")],
    limit: Limit = 1000,
) -> Items:
    """Return the matches of ``FeatureStore.search``, for remote clients."""
    matches = store.search(q, limit=limit) if q.strip() else []
    return Items(items=[record(asdict(match)) for match in matches], next=None)


@router.get("/features")
def list_features(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List the columns of the latest version of each group."""

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
        str, Query(pattern=f"^(({'|'.join(KINDS)}):.+)?$", description="empty: the complete store.")
    ] = "",
    up: Annotated[int, Query(ge=0, le=20)] = 3,
    down: Annotated[int, Query(ge=0, le=20)] = 3,
) -> dict[str, Any]:
    """Return the lineage graph: nodes, and edges from inputs to outputs by key."""
    focus = Node.parse(node)
    if focus is not None:
        lineage_graph = lineage.graph_around(store, focus, up=up, down=down)
    else:
        lineage_graph = lineage.store_graph(store)
    nodes = [{"key": each.key, **asdict(each)} for each in lineage_graph.nodes]
    edges = [{"from": before.key, "to": after.key} for before, after in lineage_graph.edges]
    return {"nodes": nodes, "edges": edges, "complete": not lineage_graph.truncated}
