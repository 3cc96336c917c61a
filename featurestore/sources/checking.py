"""Checks of sources: whether they can be reached, and which tables can be read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from featurestore.errors import FeatureStoreError
from featurestore.external.reading import open_snapshot
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.source import FOLDER_KIND, SourceReport, SourceSpec
from featurestore.plugins.source import SourceQuery
from featurestore.session import Session
from featurestore.sources.frame import read_schema
from featurestore.sources.registration import get

_SAMPLE_ROWS = 5
# The schema of a table is a request to the source, or a scan of its values.
_CHECKED_TABLES = 20


def check(session: Session, name: str) -> SourceReport:
    """Check that a source can be reached; return its tables and a few sample rows.

    Problems are reported in the result, not raised. The columns of the first 20 tables are checked
    as ``read_source`` does.
    """
    spec = get(session, name)
    try:
        snapshot = open_snapshot(session, spec)
    except FeatureStoreError as error:
        return SourceReport(spec.name, spec.kind, problems=(_describe_problem(error),))
    try:
        return _inspect_tables(session, spec, snapshot)
    except FeatureStoreError as error:
        return SourceReport(
            spec.name, spec.kind, snapshot.server, problems=(_describe_problem(error),)
        )
    finally:
        snapshot.close()


def _inspect_tables(session: Session, spec: SourceSpec, snapshot: RenamedSnapshot) -> SourceReport:
    """Return a report on the tables, with sample rows of the first readable one."""
    tables = tuple(snapshot.tables())
    problems = [
        f"The user of the URI may not read the table {table.name!r}."
        for table in tables
        if not table.readable
    ]
    if not tables:
        problems.append(_describe_missing_tables(spec, snapshot))
    report = SourceReport(
        spec.name,
        spec.kind,
        snapshot.server,
        tables,
        problems=tuple(problems),
        unread=tuple(snapshot.unread),
    )
    readable = [table for table in tables if table.readable]
    if spec.kind == FOLDER_KIND and readable:
        # Files with the same schema form one table.
        with suppress(FeatureStoreError):
            return _add_sample(report, spec, snapshot, SourceQuery(), ".")
    with ExitStack() as snapshots:
        for table in readable[:_CHECKED_TABLES]:
            query = snapshot.query_of(table)
            try:
                if report.sampled is None:
                    report = _add_sample(report, spec, snapshot, query, table.name)
                else:
                    read_schema(spec, snapshot, query)
            except FeatureStoreError as error:
                problems.append(_describe_problem(error))
                # A failed statement ends the transaction of a snapshot.
                snapshot = snapshots.enter_context(closing(open_snapshot(session, spec)))
    return replace(report, problems=tuple(problems))


def _describe_missing_tables(spec: SourceSpec, snapshot: RenamedSnapshot) -> str:
    """Return the problem of a source without tables."""
    if spec.kind == FOLDER_KIND:
        try:
            read_schema(spec, snapshot, SourceQuery())
        except FeatureStoreError as error:
            # The error names hidden files and the options that read other ones.
            return _describe_problem(error)
    return "The source has no tables, or none that the user may read."


def _add_sample(
    report: SourceReport, spec: SourceSpec, snapshot: RenamedSnapshot, query: SourceQuery, name: str
) -> SourceReport:
    """Add the first rows of a table to the report, with the types that the source inferred."""
    _, description = read_schema(spec, snapshot, query)
    rows: list[Mapping[str, object]] = []
    for batch in snapshot.read(query):
        rows += batch.slice(0, _SAMPLE_ROWS - len(rows)).to_pylist()
        if len(rows) >= _SAMPLE_ROWS:
            break
    return replace(
        report,
        sampled=name,
        sample=tuple(rows),
        dialect=description.get("dialect", {}),
        columns=description.get("columns", {}),
    )


def _describe_problem(error: FeatureStoreError) -> str:
    if error.hint is None:
        return error.message
    return f"{error.message} ({error.hint})"
