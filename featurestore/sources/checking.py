"""Checks of sources: whether they can be reached, and which tables can be read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

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
    server, unread = snapshot.server, tuple(snapshot.unread)
    readable = [table for table in tables if table.readable]
    sample: dict[str, Any] = {}
    if spec.kind == FOLDER_KIND and readable:
        # Files with the same schema form one table.
        with suppress(FeatureStoreError):
            sample = _read_sample(spec, snapshot, SourceQuery(), ".")
            readable = []
    with ExitStack() as snapshots:
        for table in readable[:_CHECKED_TABLES]:
            query = snapshot.query_of(table)
            try:
                if sample:
                    read_schema(spec, snapshot, query)
                else:
                    sample = _read_sample(spec, snapshot, query, table.name)
            except FeatureStoreError as error:
                problems.append(_describe_problem(error))
                # A failed statement ends the transaction of a snapshot.
                snapshot = snapshots.enter_context(closing(open_snapshot(session, spec)))
    return SourceReport(
        spec.name, spec.kind, server, tables, problems=tuple(problems), unread=unread, **sample
    )


def _describe_missing_tables(spec: SourceSpec, snapshot: RenamedSnapshot) -> str:
    """Return the problem of a source without tables."""
    if spec.kind == FOLDER_KIND:
        try:
            read_schema(spec, snapshot, SourceQuery())
        except FeatureStoreError as error:
            # The error names hidden files and the options that read other ones.
            return _describe_problem(error)
    return "The source has no tables, or none that the user may read."


def _read_sample(
    spec: SourceSpec, snapshot: RenamedSnapshot, query: SourceQuery, name: str
) -> dict[str, Any]:
    """Return the first rows of a table as fields of a report, and the types of its columns."""
    _, description = read_schema(spec, snapshot, query)
    rows: list[Mapping[str, object]] = []
    for batch in snapshot.read(query):
        rows += batch.slice(0, _SAMPLE_ROWS - len(rows)).to_pylist()
        if len(rows) >= _SAMPLE_ROWS:
            break
    return {
        "sampled": name,
        "sample": tuple(rows),
        "dialect": description.get("dialect", {}),
        "columns": description.get("columns", {}),
    }


def _describe_problem(error: FeatureStoreError) -> str:
    if error.hint is None:
        return error.message
    return f"{error.message} ({error.hint})"
