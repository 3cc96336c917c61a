"""Records of the home page: counts, newest objects, failures."""

from __future__ import annotations

from dataclasses import dataclass

from featurestore.registry import overview
from featurestore.registry.overview import (
    DatasetLine,
    FailedValidation,
    GroupFilter,
    GroupLine,
    Incident,
)
from featurestore.registry.runs import Run
from featurestore.store import FeatureStore

_NEWEST = 8


@dataclass(frozen=True)
class Home:
    """Content of the home page."""

    counts: dict[str, int]
    groups: list[GroupLine]
    datasets: list[DatasetLine]
    failing_jobs: list[Run]
    failed_validations: list[FailedValidation]
    incidents: list[Incident]

    @property
    def empty(self) -> bool:
        """Whether the store is empty."""
        return not any(self.counts.values())


def home(store: FeatureStore) -> Home:
    """Return the content of the home page from the registry, without opening tables."""
    with store.session.registry.reading() as connection:
        return Home(
            counts=overview.counts(connection),
            groups=overview.groups(connection, GroupFilter(newest_first=True), limit=_NEWEST),
            datasets=overview.datasets(connection, newest_first=True, limit=_NEWEST, offset=0),
            failing_jobs=overview.failing_jobs(connection),
            failed_validations=overview.failed_validations(connection),
            incidents=overview.open_incidents(connection),
        )
