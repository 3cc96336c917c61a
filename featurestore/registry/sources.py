"""Registered row sources; secrets are stored only as references."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import SourceExists, SourceNotFound, did_you_mean, listing
from featurestore.model.source import SourceSpec
from featurestore.registry.rows import lock, put_row, translate_parse_errors
from featurestore.registry.stores import unregistered_error
from featurestore.registry.tables import sources
from featurestore.registry.unregistered import has_definition


def lock_name(connection: Connection, name: str) -> None:
    """Lock the name of a source until the end of the transaction."""
    lock(connection, f"source/{name}")


def add(connection: Connection, spec: SourceSpec) -> None:
    """Register a source.

    Raises:
        SourceExists: A source with this name already exists.
    """
    lock_name(connection, spec.name)
    if spec.name in names(connection):
        raise SourceExists(
            f"Source {spec.name!r} is already registered.",
            hint=f"call remove_source({spec.name!r}) first, or choose another name",
        )
    connection.execute(sources.insert().values(name=spec.name, spec=json.dumps(spec.to_json())))


def put(connection: Connection, spec: SourceSpec) -> None:
    """Register a source, instead of an existing registration with this name."""
    lock_name(connection, spec.name)
    put_row(connection, sources, {"name": spec.name}, {"spec": json.dumps(spec.to_json())})


def get(connection: Connection, name: str) -> SourceSpec:
    """Return a source by name.

    Raises:
        SourceNotFound: The message lists the registered sources.
    """
    query = sa.select(sources.c.spec).where(sources.c.name == name)
    text = connection.execute(query).scalar_one_or_none()
    if text is None:
        existing = names(connection)
        if has_definition(connection, "source", name):
            raise unregistered_error(connection, SourceNotFound, f"Source {name!r}")
        raise SourceNotFound(
            f"Unknown source {name!r}. Available: {listing(existing)}.",
            hint=did_you_mean(name, existing) or f"featurestore.add_source({name!r}, uri)",
        )
    return _read(name, text)


def list_all(connection: Connection) -> list[SourceSpec]:
    """Return all sources, ordered by name."""
    query = sa.select(sources.c.name, sources.c.spec).order_by(sources.c.name)
    return [_read(row.name, row.spec) for row in connection.execute(query)]


def names(connection: Connection) -> list[str]:
    """Return the sorted names of all sources."""
    query = sa.select(sources.c.name).order_by(sources.c.name)
    return [str(name) for name in connection.execute(query).scalars()]


def remove(connection: Connection, name: str) -> None:
    """Remove a source; raise SourceNotFound if it does not exist."""
    lock_name(connection, name)
    get(connection, name)
    connection.execute(sources.delete().where(sources.c.name == name))


def _read(name: str, text: str) -> SourceSpec:
    with translate_parse_errors(f"source {name!r}"):
        return SourceSpec.from_text(text)
