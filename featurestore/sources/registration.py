"""Registration of sources: add, list and remove sources; options are stored as strings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.engine import Connection

from featurestore.errors import InvalidArgument, listing
from featurestore.external import reading
from featurestore.model.names import RENAME, check_name, parse_credentials
from featurestore.model.source import (
    FOLDER_KIND,
    SourceSpec,
    check_uri,
    make_path_absolute,
    options_to_strings,
    source_kind,
)
from featurestore.model.times import to_micros, utc_now
from featurestore.recovery import record_files
from featurestore.registry import sources
from featurestore.session import Session
from featurestore.storage import storage_for
from featurestore.storage.grants import acting_source, grant


def add(
    session: Session,
    name: str,
    uri: str,
    *,
    secret: str | None,
    options: Mapping[str, object],
    description: str,
) -> SourceSpec:
    """Register a source without connecting to it, and return the registration.

    Raises:
        SourceExists: A different source with this name is registered.
        InvalidArgument: The URI contains a password, or its kind is not installed.
    """
    spec = build_source(name, uri, secret=secret, options=options, description=description)
    # This checks the URI and the options without a connection.
    reading.build_source(session, spec)
    with session.registry.transaction() as connection:
        sources.lock_name(connection, name)
        # A repeated registration, such as on another machine, only writes the grant.
        if not is_registered(connection, spec):
            sources.add(connection, spec)
            # If the file cannot be written, the registration is rolled back.
            record_files.write_source(session.location, spec)
        grant_source(session, spec)
    return spec


def build_source(
    name: str, uri: str, *, secret: str | None, options: Mapping[str, object], description: str
) -> SourceSpec:
    """Build the registration of a source from a caller's arguments.

    Raises:
        InvalidArgument: The URI contains a password, or is not a URI.
    """
    check_name(name, noun="source")
    check_uri(uri)
    if secret is not None:
        parse_credentials(secret)

    def absolute_path(path: str) -> str:
        expanded = os.path.expanduser(path)
        # The path ``/orders.db`` may be relative, as in SQLAlchemy URLs.
        from_here = os.path.abspath(expanded.lstrip("/"))
        if (
            expanded.startswith("/")
            and not storage_for(expanded).exists(expanded)
            and storage_for(from_here).exists(from_here)
        ):
            return from_here
        return os.path.abspath(expanded).replace("//", "/")

    return SourceSpec(
        name=name,
        kind=source_kind(uri),
        # Later processes may have another working directory.
        uri=make_path_absolute(uri, absolute=absolute_path),
        secret=secret,
        options=options_to_strings(options),
        description=description,
        created=to_micros(utc_now()),
    )


def is_registered(connection: Connection, spec: SourceSpec) -> bool:
    """Return whether a source is registered with this definition."""
    return spec.name in sources.names(connection) and spec == replace(
        sources.get(connection, spec.name), created=spec.created
    )


def put(session: Session, spec: SourceSpec) -> None:
    """Register a source, or replace its registration."""
    with session.registry.transaction() as connection:
        sources.put(connection, spec)
        record_files.write_source(session.location, spec, replaces=True)
        grant_source(session, spec)


def grant_source(session: Session, spec: SourceSpec) -> None:
    """Allow the store to open the address of a source from this machine, and to use its secret.

    A registration does so in its transaction, so that the last one also writes the last grant.
    """
    grant(acting_source(session.location, spec))


def every(session: Session) -> list[SourceSpec]:
    """Return all registered sources, sorted by name."""
    with session.registry.reading() as connection:
        return sources.list_all(connection)


def get(session: Session, name: str) -> SourceSpec:
    """Return a registered source; SourceNotFound lists the registered sources."""
    with session.registry.reading() as connection:
        return sources.get(connection, name)


def remove(session: Session, name: str) -> None:
    """Remove the registration of a source; rows that were read from it remain."""
    with session.registry.transaction() as connection:
        sources.remove(connection, name)
        record_files.remove_source(session.location, name)


def check_folder_options(spec: SourceSpec, options: Mapping[str, str]) -> None:
    """Raise an error for folder options of a source that is not a folder."""
    folder_options = [name for name in options if name != RENAME]
    if folder_options and spec.kind != FOLDER_KIND:
        raise InvalidArgument(
            f"Source {spec.name!r} is of kind {spec.kind!r}; only folders of files have the options "
            f"{listing(folder_options)}.",
            hint="sources of every kind support rename=",
        )
