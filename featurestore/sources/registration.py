"""Sources of a store: registered, listed, checked, removed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from featurestore.errors import FeatureStoreError
from featurestore.external.opening import (
    open_snapshot,
    open_source,
    receipt_address,
    receipt_name,
)
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.names import check_name
from featurestore.model.secrets import parse_secret
from featurestore.model.source import (
    FOLDER_KIND,
    SourceReport,
    SourceSpec,
    check_uri,
    kind_of,
    with_absolute_path,
)
from featurestore.model.times import to_micros, utc_now
from featurestore.plugins.source import SourceQuery
from featurestore.recovery import sources as definitions
from featurestore.registry import sources
from featurestore.session import Session
from featurestore.sources.options import text_options
from featurestore.storage import files
from featurestore.storage.secrets import allow_secret

_SAMPLE_ROWS = 5


def add(
    session: Session,
    name: str,
    uri: str,
    *,
    secret: str | None,
    options: Mapping[str, object],
    description: str,
) -> SourceSpec:
    """Register a source and return its registration; nothing is connected.

    Raises:
        SourceExists: There is one of this name, and it is another.
        InvalidArgument: The URI holds a password, or is of no installed kind.
    """
    check_name(name, noun="source")
    check_uri(uri)
    if secret is not None:
        secret = str(parse_secret(secret))
    spec = SourceSpec(
        name=name,
        kind=kind_of(uri),
        uri=with_absolute_path(uri, absolute=_absolute),
        secret=secret,
        options=text_options(options),
        description=description,
        created=to_micros(utc_now()),
    )
    open_source(session, spec)
    with session.registry.transaction() as connection:
        known = sources.names(connection)
        if name not in known or not _is_same(sources.get(connection, name), spec):
            sources.add(connection, spec)
            definitions.write(session.location, spec)
    if spec.secret is not None:
        reference = parse_secret(spec.secret)
        allow_secret(
            reference,
            location=session.location,
            name=receipt_name(spec),
            uri=receipt_address(spec),
        )
    return spec


def _is_same(known: SourceSpec, spec: SourceSpec) -> bool:
    """Return whether a source is registered once more, as on another machine, for its secret."""
    return replace(known, created=spec.created) == spec


def _absolute(path: str) -> str:
    """Return a path of this machine; ``/orders.db`` may be meant from here, as others write it."""
    expanded = os.path.expanduser(path)
    from_here = os.path.abspath(expanded.lstrip("/"))
    if expanded.startswith("/") and not files.exists(expanded) and files.exists(from_here):
        return from_here
    return os.path.abspath(expanded).replace("//", "/")


def every(session: Session) -> list[SourceSpec]:
    """Return every source, by name."""
    with session.registry.reading() as connection:
        return sources.every(connection)


def get(session: Session, name: str) -> SourceSpec:
    """Return a source; SourceNotFound lists what there is."""
    with session.registry.reading() as connection:
        return sources.get(connection, name)


def remove(session: Session, name: str) -> None:
    """Forget a source; what was read of it stays."""
    with session.registry.transaction() as connection:
        sources.remove(connection, name)
        definitions.remove(session.location, name)


def check(session: Session, name: str) -> SourceReport:
    """Return whether a source can be reached, what may be read there, and a few rows.

    What is wrong is in the report, not raised.
    """
    spec = get(session, name)
    try:
        snapshot = open_snapshot(session, spec)
    except FeatureStoreError as error:
        return SourceReport(spec.name, spec.kind, problems=(_told(error),))
    try:
        return _looked_at(spec, snapshot)
    except FeatureStoreError as error:
        return SourceReport(spec.name, spec.kind, snapshot.server, problems=(_told(error),))
    finally:
        snapshot.close()


def _looked_at(spec: SourceSpec, snapshot: RenamedSnapshot) -> SourceReport:
    tables = tuple(snapshot.tables())
    problems = []
    if not tables:
        problems.append("There are no tables, or none that the user may see.")
    for table in tables:
        if not table.readable:
            problems.append(f"Table {table.name!r} may not be read by the user of the URI.")
    report = SourceReport(
        spec.name,
        spec.kind,
        snapshot.server,
        tables,
        problems=tuple(problems),
        unread=tuple(snapshot.unread),
    )
    readable = [table for table in tables if table.readable]
    if not readable:
        return report
    if spec.kind == FOLDER_KIND:
        # Files of one schema are one table.
        with suppress(FeatureStoreError):
            return _sampled(report, snapshot, SourceQuery(), ".")
    try:
        return _sampled(report, snapshot, snapshot.query_of(readable[0]), readable[0].name)
    except FeatureStoreError as error:
        return replace(report, sampled=readable[0].name, problems=(*report.problems, _told(error)))


def _sampled(
    report: SourceReport, snapshot: RenamedSnapshot, query: SourceQuery, name: str
) -> SourceReport:
    """Return the report with the first rows of a table, and what the source decided about it."""
    rows: list[Mapping[str, object]] = []
    for batch in snapshot.read(query):
        rows += batch.slice(0, _SAMPLE_ROWS - len(rows)).to_pylist()
        if len(rows) >= _SAMPLE_ROWS:
            break
    described = snapshot.description(query) or {}
    return replace(
        report,
        sampled=name,
        sample=tuple(rows),
        dialect=described.get("dialect", {}),
        columns=described.get("columns", {}),
    )


def _told(error: FeatureStoreError) -> str:
    if error.hint is None:
        return error.message
    return f"{error.message} ({error.hint})"
