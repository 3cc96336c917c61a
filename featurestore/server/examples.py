"""Rows and groups that snippets use as examples: label rows with values from statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.featuregroups import FeatureGroup
from featurestore.featuregroups.quality import find_stored_statistics
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.statistics import ColumnStatistics
from featurestore.model.times import parse_moment, utc_now
from featurestore.store import FeatureStore

_MAX_TEXT_LENGTH = 40
_MAX_CANDIDATES = 50
_LABEL_TIMES = ("label_time", "asked_at", "as_of_time", "t")


@dataclass(frozen=True)
class LabelRow:
    """The columns of one label row as Python code, and their values."""

    cells: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    imports: Sequence[str] = ()

    @property
    def assignment(self) -> str:
        """The statement that assigns the labels."""
        cells = ", ".join(f"{name!r}: {code}" for name, code in self.cells.items())
        return f"labels = [{{{cells}}}]"


def label_row(
    groups: Sequence[FeatureGroup],
    *,
    join_keys: Mapping[str, Mapping[str, str]] | None = None,
    label_time: str | None = None,
) -> LabelRow:
    """Return a label row with values of the groups, from their statistics where these exist.

    Args:
        groups: The groups that are joined.
        join_keys: For groups whose keys have other names in the labels: key by label column.
        label_time: Name of the time column; None chooses a name that no group has.
    """
    values: dict[str, Any] = {}
    imports: set[str] = set()
    times: list[datetime] = []
    for group in groups:
        statistics = _column_statistics(group)
        keys = (join_keys or {}).get(group.name) or {key: key for key in group.primary_key}
        for label_column, key in keys.items():
            value = _example(group.schema.field(key).type, statistics.get(key))
            values.setdefault(label_column, value)
        if group.event_time is not None and group.primary_key:
            times.append(_last_time(statistics.get(group.event_time)))
    if times:
        names = {name for group in groups for name in group.schema.names}
        name = label_time or next(name for name in _LABEL_TIMES if name not in names)
        values[name] = max(times)
    cells = {name: _literal(value, imports) for name, value in values.items()}
    return LabelRow(cells, values, sorted(imports))


def label_row_of_view(store: FeatureStore, spec: FeatureViewSpec) -> LabelRow:
    """Return a label row for the groups of a view."""
    join_keys: dict[str, Mapping[str, str]] = {}
    for step in spec.steps:
        if isinstance(step.join_key, Mapping):
            for group, keys in step.join_key.items():
                if isinstance(keys, Mapping):
                    join_keys[group] = keys
    groups = [store.featuregroup(name, version=version) for name, version in spec.groups]
    return label_row(groups, join_keys=join_keys, label_time=spec.label_time)


def first_group(store: FeatureStore, *, with_event_time: bool = False) -> FeatureGroup | None:
    """Return the first group of the store that has features, and an event time if required."""
    for group in store.get_featuregroups(limit=_MAX_CANDIDATES):
        if feature_names(group) and (group.event_time is not None or not with_event_time):
            return store.featuregroup(group.name)
    return None


def feature_names(group: FeatureGroup) -> list[str]:
    """Return the columns of a group other than its keys and times."""
    times = {group.event_time, group.created_time}
    return [name for name in group.schema.names if name not in {*group.primary_key, *times}]


def _column_statistics(group: FeatureGroup) -> dict[str, ColumnStatistics]:
    statistics = find_stored_statistics(group._session, group.name, version=group.version)
    return {} if statistics is None else {column.name: column for column in statistics.columns}


def _example(dtype: pa.DataType, statistics: ColumnStatistics | None) -> Any:
    """Return a value of a key column: its minimum, or any value of its type."""
    minimum = None if statistics is None else statistics.minimum
    if pat.is_boolean(dtype):
        return True
    if pat.is_integer(dtype):
        return 1 if minimum is None else int(minimum)
    if pat.is_decimal(dtype):
        return Decimal(1)
    if pat.is_date(dtype):
        return date(2024, 1, 1) if minimum is None else date.fromisoformat(str(minimum)[:10])
    if pat.is_timestamp(dtype):
        return _last_time(statistics)
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return b"a"
    return str(minimum) if minimum and len(str(minimum)) <= _MAX_TEXT_LENGTH else "a"


def _literal(value: Any, imports: set[str]) -> str:
    """Return the code of a value, and add the imports that it needs."""
    if isinstance(value, datetime):
        imports.add("from datetime import datetime")
        return f"datetime.fromisoformat({value.astimezone(UTC).isoformat()!r})"
    if isinstance(value, date):
        imports.add("from datetime import date")
    elif isinstance(value, Decimal):
        imports.add("from decimal import Decimal")
    return repr(value).replace("datetime.date(", "date(")


def _last_time(statistics: ColumnStatistics | None) -> datetime:
    if statistics is None or statistics.maximum is None:
        return utc_now().replace(microsecond=0)
    return parse_moment(str(statistics.maximum), argument="maximum", warn=False)


def first_time(group: FeatureGroup) -> datetime:
    """Return the first event time of a group, or the current time if it is unknown."""
    statistics = _column_statistics(group).get(group.event_time or "")
    if statistics is None or statistics.minimum is None:
        return utc_now()
    return parse_moment(str(statistics.minimum), argument="minimum", warn=False)
