"""Checks of a write: types of declared times, implausible times, and repeated batches."""

from __future__ import annotations

from datetime import datetime

import pyarrow.types as pat

from featurestore.arrow.cast_lines import can_be_epoch, conversion_hint, misread_advice
from featurestore.delta.datafile import DataFile
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import DataWarning, FeatureStoreError, InvalidArgument, SchemaMismatch
from featurestore.featuregroups.audit import AuditedRows
from featurestore.featuregroups.definition import Declaration
from featurestore.featuregroups.table import OpenGroup
from featurestore.ingest import with_language
from featurestore.model.callers import warn_caller
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import SuspiciousTimeWarning
from featurestore.plugins.engine import Engine, Relation
from featurestore.storage import files
from featurestore.validation.checks import EARLY_TIMES, FUTURE_TIMES

# Reading many large files again would cost more than the write.
_MOST_BYTES = 256 * 1024 * 1024
_PEEK_ROWS = 1000


def check_time_types(rows: Relation, declared: Declaration, *, df: object, engine: Engine) -> None:
    """Refuse time columns of numbers or strings.

    The hint converts numbers with the unit that their size suggests, in the code of the dataframe's
    library. ``rows`` may be a stream: it is read only before an error.
    """
    for name in (declared.event_time, declared.created_time):
        if name is None or name not in rows.schema.names:
            continue
        kind = rows.schema.field(name).type
        if pat.is_timestamp(kind) or pat.is_date(kind):
            continue
        values: list[float | None] = []
        if can_be_epoch(kind):
            values = _first(rows, name, engine=engine)
        raise InvalidArgument(
            f"Time column {name!r} has type {kind}; times are timestamps or dates.",
            hint=conversion_hint(name, kind, values, library=with_language(df)[1]),
        )


def check_time_numbers(
    rows: Relation, spec: FeatureGroupSpec, *, df: object, engine: Engine
) -> None:
    """Refuse numbers for the times of an existing group, with the code that converts them."""
    for name in (spec.event_time, spec.created_time):
        if name is None or name not in rows.schema.names:
            continue
        kind = rows.schema.field(name).type
        if can_be_epoch(kind):
            values = _first(rows, name, engine=engine)
            raise SchemaMismatch(
                f"{name!r}, a time of feature group {spec.name!r}, is {kind} in these rows.",
                hint=conversion_hint(name, kind, values, library=with_language(df)[1]),
            )


def warn_of_odd_times(audited: AuditedRows, spec: FeatureGroupSpec) -> None:
    """Warn of event times before 1980, which match all labels, and of those in the future."""
    if audited.report is None or spec.event_time is None:
        return
    for result in audited.report.results:
        if result.expectation["type"] == FUTURE_TIMES and result.unexpected:
            latest = max([sample[spec.event_time] for sample in result.samples], default="")
            warn_caller(
                f"feature group {spec.name!r}: {result.message}, as far as {latest}; labels find "
                "them only then (event_time_tolerance= at creation allows for clocks that go "
                "ahead)",
                DataWarning,
            )
        if result.expectation["type"] != EARLY_TIMES or not result.unexpected:
            continue
        sampled_times = [sample[spec.event_time] for sample in result.samples]
        times = [time for time in sampled_times if isinstance(time, datetime)]
        warn_caller(
            f"feature group {spec.name!r}: {result.message}, where every later label finds them; "
            f"{misread_advice(times)}",
            SuspiciousTimeWarning,
        )


def _first(rows: Relation, name: str, *, engine: Engine) -> list[float | None]:
    column = engine.select(rows, {name: name})
    table = engine.stream(column, batch_rows=_PEEK_ROWS, limit=_PEEK_ROWS).read_all()
    values: list[float | None] = table.column(0).to_pylist()
    return values


def warn_of_repeats(group: OpenGroup, delta_version: int) -> None:
    """Warn if all files of a commit equal earlier files of the group byte for byte.

    Only files of equal size, rows and statistics are read. The rows are committed, so nothing is
    raised.
    """
    before: dict[tuple[int, int], list[DataFile]] = {}
    for file in group.state.files:
        before.setdefault((file.bytes, file.rows), []).append(file)
    if not before:
        return
    try:
        earlier_paths = {file.path for file in group.state.files}
        added = [
            file
            for file in read_snapshot(group.path, delta_version).files
            if file.path not in earlier_paths
        ]
        if sum(file.bytes for file in added) > _MOST_BYTES:
            return
        is_repeat = bool(added) and all(_has_copy(file, before) for file in added)
    except (FeatureStoreError, OSError):
        return  # without the files the rows cannot be compared
    rows = sum(file.rows for file in added)
    if is_repeat and rows > 1:
        warn_caller(
            f"the same {rows:,} rows were in feature group {group.spec.name!r} already and are "
            "there twice now; transaction=('name', number) makes a write happen once, and a group "
            "with primary_key= takes mode='upsert'",
            DataWarning,
        )


def _has_copy(file: DataFile, before: dict[tuple[int, int], list[DataFile]]) -> bool:
    for candidate in before.get((file.bytes, file.rows), ()):
        is_similar = (candidate.statistics, candidate.partition) == (
            file.statistics,
            file.partition,
        )
        if is_similar and files.sha256(candidate.path) == files.sha256(file.path):
            return True
    return False
