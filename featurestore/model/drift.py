"""Drift between two tables: changes of each feature, compared with sampling noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from featurestore.model import display
from featurestore.model.json_object import JsonMapping
from featurestore.model.records import Record
from featurestore.model.statistics_text import format_share

DRIFT_FORMAT = 1
_REPORT_KEYS = (
    "ok", "before", "after", "rows_before", "rows_after", "thresholds", "added", "removed",
    "retyped", "features",
)  # fmt: skip


@dataclass(frozen=True)
class DriftThresholds(Record, closed=True):
    """Thresholds for drift. Fractions are of rows.

    ``psi``: population stability index (conventionally 0.1 is moderate, 0.25 large). ``ks``:
    Kolmogorov-Smirnov distance. ``missing``: change of the fraction of missing values. ``new``:
    fraction of rows with previously unseen values.
    """

    psi: float = 0.2
    ks: float = 0.1
    missing: float = 0.05
    new: float = 0.01


@dataclass(frozen=True)
class FeatureDrift(Record, closed=True):
    """The changes of one feature from the first table to the second.

    ``psi`` and ``ks`` are None if they are undefined (no values; strings have no order).
    ``values_complete`` is True if every value of both tables was counted separately. Otherwise
    (string columns of more than 100 values), ``psi`` compares the 20 most frequent values of each
    table and one bin of other values, and ``new_values`` and ``gone_values`` may be incomplete.

    ``reasons`` name each measure that exceeds both its threshold and the difference that is
    expected by chance for these sample sizes.
    """

    name: str
    kind: str
    psi: float | None = None
    ks: float | None = None
    missing_before: float = 0.0
    missing_after: float = 0.0
    new_values: tuple[Any, ...] = ()
    new_share: float = 0.0
    gone_values: tuple[Any, ...] = ()
    reasons: tuple[str, ...] = ()
    values_complete: bool = True

    __repr__ = display.record_repr

    @property
    def drifted(self) -> bool:
        """Whether the feature drifted."""
        return bool(self.reasons)


@dataclass(frozen=True)
class DriftReport(Record, format=DRIFT_FORMAT, subject="The drift report", keys=_REPORT_KEYS):
    """The drift of every feature that both tables have, ordered by descending drift.

    >>> statistics = store.get_featuregroup_statistics("weather")
    >>> print(featurestore.compare_statistics(statistics, statistics))
    weather@v1 #1 (4 rows) -> weather@v1 #1 (4 rows)
    0 of 2 features drifted
    """

    before: JsonMapping
    after: JsonMapping
    rows_before: int
    rows_after: int
    features: tuple[FeatureDrift, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    thresholds: DriftThresholds = field(default_factory=DriftThresholds)

    __repr__ = display.record_repr

    @property
    def drifted(self) -> tuple[FeatureDrift, ...]:
        """The features that drifted."""
        return tuple(feature for feature in self.features if feature.drifted)

    @property
    def ok(self) -> bool:
        """Whether no feature drifted and both tables have the same columns.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> featurestore.compare_statistics(statistics, statistics).ok
        True
        """
        return not (self.drifted or self.added or self.removed or self.retyped)

    def feature(self, name: str) -> FeatureDrift:
        """Return the drift of one feature.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> report = featurestore.compare_statistics(statistics, statistics)
        >>> (report.feature("temp").psi, report.feature("temp").drifted)
        (0.0, False)
        """
        return next(candidate for candidate in self.features if candidate.name == name)

    def __str__(self) -> str:
        before = f"{_source_name(self.before)} ({self.rows_before:,} rows)"
        after = f"{_source_name(self.after)} ({self.rows_after:,} rows)"
        lines = [f"{before} -> {after}"]
        if self.added:
            lines.append(f"columns added: {', '.join(self.added)}")
        if self.removed:
            lines.append(f"columns removed: {', '.join(self.removed)}")
        if self.retyped:
            lines.append(f"columns with changed types: {', '.join(self.retyped)}")
        for feature in self.drifted:
            lines.append(f"  {feature.name}: {'; '.join(feature.reasons)}")
        lines.append(f"{len(self.drifted)} of {len(self.features)} features drifted")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[dict[str, object]] = [
            {
                "feature": feature.name,
                "drifted": feature.drifted,
                "psi": feature.psi,
                "ks": feature.ks,
                "values": "all" if feature.values_complete else "most frequent",
                "missing_before": format_share(feature.missing_before),
                "missing_after": format_share(feature.missing_after),
                "reasons": feature.reasons,
            }
            for feature in self.features
        ]
        return display.records_table(rows, caption=str(self).partition("\n")[0])

    @classmethod
    def from_json(cls, data: object) -> DriftReport:
        """Parse the output of ``to_json``.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> report = featurestore.compare_statistics(statistics, statistics)
        >>> DriftReport.from_json(report.to_json()) == report
        True
        """
        return super().from_json(data)


def _source_name(source: JsonMapping) -> str:
    """Return the display name of a compared table, such as ``weather@v1 #7``."""
    name = str(source.get("featuregroup") or source.get("training_dataset") or "a table")
    if source.get("version") is not None:
        name += f"@v{source['version']}"
    if source.get("split"):
        name += f" {source['split']}"
    if source.get("delta_version") is not None:
        name += f" #{source['delta_version']}"
    return name
