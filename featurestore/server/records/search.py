"""Finding things: groups by all that is said of them, and datasets, views and jobs by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from featurestore.registry import feature_views, jobs, overview
from featurestore.store import FeatureStore

KINDS = ("feature group", "feature", "training dataset", "feature view", "job")


@dataclass(frozen=True)
class SearchResult:
    """Something that a search found: where the text stands, and the page of it."""

    kind: str
    name: str
    where: str
    text: str
    address: str


def search(store: FeatureStore, text: str, *, limit: int = 100) -> list[SearchResult]:
    """Return what contains a text, names first; at most ``limit`` of each kind."""
    wanted = text.strip()
    if not wanted:
        return []
    found = [
        *_groups(store, wanted, limit),
        *_others(store, wanted.casefold(), limit),
    ]
    return found[:limit]


def count_kinds(found: Sequence[SearchResult]) -> dict[str, int]:
    """Return how many of each kind were found, in the order of kinds."""
    counted = Counter(each.kind for each in found)
    return {kind: counted[kind] for kind in KINDS if counted[kind]}


def _groups(store: FeatureStore, text: str, limit: int) -> list[SearchResult]:
    found = []
    for match in store.search(text, limit=limit):
        address = f"/groups/{match.group}/{match.version}"
        name = match.reference
        kind = "feature" if "." in match.reference else "feature group"
        if match.reference.startswith("training_datasets/"):
            kind, address = "training dataset", f"/datasets/{match.group}/{match.version}"
            name = match.group
        elif match.reference.startswith("feature_views/"):
            kind, address = "feature view", f"/views/{match.group}/{match.version}"
            name = match.group
        elif kind == "feature":
            address = f"{address}#feature-{match.reference.partition('.')[2]}"
        found.append(SearchResult(kind, name, match.where, match.text, address))
    return found


def _others(store: FeatureStore, text: str, limit: int) -> list[SearchResult]:
    found = []
    with store.session.registry.reading() as connection:
        datasets = overview.datasets(connection, text=text, limit=limit, offset=0)
        views = dict(feature_views.every(connection))
        names = [job.spec.name for job in jobs.every(connection)]
    for dataset in datasets:
        address = f"/datasets/{dataset.name}/{dataset.version}"
        label = f"{dataset.name} v{dataset.version}"
        found.append(SearchResult("training dataset", label, "name", dataset.name, address))
    for name, version in views.items():
        if text in name.casefold():
            found.append(
                SearchResult("feature view", name, "name", name, f"/views/{name}/{version}")
            )
    for name in names:
        if text in name.casefold():
            found.append(SearchResult("job", name, "name", name, f"/jobs/{name}"))
    return found
