"""Finding things: groups by all that is said of them, and all else by name."""

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

# What is found by name alone, and where its page is.
_NAMED = {
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
    """Something that a search found: where the text stands, and the page of it."""

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
    wanted: SearchFilter | None = None,
    limit: int = 100,
) -> list[SearchResult]:
    """Return what contains a text: at most ``limit`` of what is said of groups and of each kind."""
    if not text.strip():
        return []
    wanted = wanted or SearchFilter()
    matches = discovery.search(store.session, text, limit=limit, kind=kind or None, filters=wanted)
    found = [_of_match(match) for match in matches]
    with store.session.registry.reading() as connection:
        for each in _NAMED:
            if kind in ("", each):
                found += _named(connection, each, text.strip(), wanted, limit)
    return found


def count_kinds(found: Sequence[SearchResult]) -> dict[str, int]:
    """Return how many of each kind were found, in the order of kinds."""
    counted = Counter(each.kind for each in found)
    return {kind: counted[kind] for kind in KINDS if counted[kind]}


def _of_match(match: Match) -> SearchResult:
    address, name = f"/groups/{match.group}/{match.version}", match.reference
    if match.kind == "feature":
        address = f"{address}#feature-{match.reference.partition('.')[2]}"
    elif match.kind == "training dataset":
        address, name = f"/datasets/{match.group}/{match.version}", match.group
    elif match.kind == "feature view":
        address, name = f"/views/{match.group}/{match.version}", match.group
    return SearchResult(match.kind, name, match.where, match.text, address)


def _named(
    connection: Connection, kind: str, text: str, wanted: SearchFilter, limit: int
) -> list[SearchResult]:
    called, address = _NAMED[kind]
    names = search_filters.names(connection, called, wanted, text=text, limit=limit)
    return [SearchResult(kind, name, "name", name, address.format(name)) for name in names]
