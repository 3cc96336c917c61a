"""Search: feature groups by all their texts, other objects by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sqlalchemy.engine import Connection

from featurestore.featuregroups import discovery
from featurestore.featuregroups.discovery import Match
from featurestore.registry import search_filters
from featurestore.registry.search_filters import SearchFilter
from featurestore.store import FeatureStore

# Kinds that are searched by name only: category in the registry and URL pattern.
_SEARCHED_BY_NAME = {
    "training dataset": (search_filters.DATASET, "/datasets/{}"),
    "feature view": (search_filters.VIEW, "/views/{}"),
    "job": (search_filters.JOB, "/jobs/{}"),
    "model": (search_filters.MODEL, "/models/{}"),
    "experiment": (search_filters.EXPERIMENT, "/experiments?name={}"),
}
Kind = Literal[
    "feature group",
    "feature",
    "training dataset",
    "feature view",
    "job",
    "model",
    "experiment",
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class SearchResult:
    """A match: the field and text that matched, and the URL of the page."""

    kind: str
    name: str
    where: str
    text: str
    address: str


def search(
    store: FeatureStore,
    text: str,
    *,
    kind: str = "",
    filters: SearchFilter | None = None,
    limit: int = 100,
) -> list[SearchResult]:
    """Return the matches of a text: at most ``limit`` of groups and of each other kind."""
    if not text.strip():
        return []
    filters = filters or SearchFilter()
    matches = discovery.search(store.session, text, limit=limit, kind=kind or None, filters=filters)
    results = [_result_of_match(match) for match in matches]
    with store.session.registry.reading() as connection:
        for each in _SEARCHED_BY_NAME:
            if kind in ("", each):
                results += _search_names(connection, each, text.strip(), filters, limit)
    return results


def count_kinds(results: Sequence[SearchResult]) -> dict[str, int]:
    """Count results by kind, in the order of KINDS."""
    counts = Counter(each.kind for each in results)
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def _result_of_match(match: Match) -> SearchResult:
    address, name = f"/groups/{match.group}/{match.version}", match.reference
    if match.kind == "feature":
        address = f"{address}#feature-{match.reference.partition('.')[2]}"
    elif match.kind == "training dataset":
        address, name = f"/datasets/{match.group}/{match.version}", match.group
    elif match.kind == "feature view":
        address, name = f"/views/{match.group}/{match.version}", match.group
    return SearchResult(match.kind, name, match.where, match.text, address)


def _search_names(
    connection: Connection, kind: str, text: str, filters: SearchFilter, limit: int
) -> list[SearchResult]:
    category, address = _SEARCHED_BY_NAME[kind]
    names = search_filters.names(connection, category, filters, text=text, limit=limit)
    return [SearchResult(kind, name, "name", name, address.format(name)) for name in names]
