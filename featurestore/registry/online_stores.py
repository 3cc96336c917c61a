"""Registered online stores; secrets are stored only as references."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import (
    OnlineStoreExists,
    OnlineStoreNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.online_store import EMBEDDED, OnlineStoreSpec
from featurestore.registry.rows import lock, put_row, translate_parse_errors
from featurestore.registry.stores import unregistered_error
from featurestore.registry.tables import online_stores
from featurestore.registry.unregistered import has_definition


def lock_name(connection: Connection, name: str) -> None:
    """Lock the name of an online store until the end of the transaction."""
    lock(connection, f"online store/{name}")


def add(connection: Connection, spec: OnlineStoreSpec) -> None:
    """Register an online store.

    Raises:
        OnlineStoreExists: An online store with this name already exists.
    """
    lock_name(connection, spec.name)
    if spec.name in names(connection):
        raise OnlineStoreExists(
            f"Online store {spec.name!r} is already registered.",
            hint=f"call remove_online_store({spec.name!r}) first, or choose another name",
        )
    row = {"name": spec.name, "spec": json.dumps(spec.to_json())}
    connection.execute(online_stores.insert().values(row))


def put(connection: Connection, spec: OnlineStoreSpec) -> None:
    """Register an online store, instead of an existing registration with this name."""
    lock_name(connection, spec.name)
    put_row(connection, online_stores, {"name": spec.name}, {"spec": json.dumps(spec.to_json())})


def get(connection: Connection, name: str) -> OnlineStoreSpec:
    """Return an online store by name.

    Raises:
        OnlineStoreNotFound: The message lists the online stores.
    """
    query = sa.select(online_stores.c.spec).where(online_stores.c.name == name)
    text = connection.execute(query).scalar_one_or_none()
    if text is None:
        existing = [EMBEDDED, *names(connection)]
        if has_definition(connection, "online_store", name):
            raise unregistered_error(connection, OnlineStoreNotFound, f"Online store {name!r}")
        raise OnlineStoreNotFound(
            f"Unknown online store {name!r}. Available: {listing(existing)}.",
            hint=did_you_mean(name, existing)
            or f"featurestore.add_online_store({name!r}, 'redis://localhost:6379/0')",
        )
    return _parse(name, text)


def list_all(connection: Connection) -> list[OnlineStoreSpec]:
    """Return all registered online stores, ordered by name."""
    query = sa.select(online_stores).order_by(online_stores.c.name)
    return [_parse(row.name, row.spec) for row in connection.execute(query)]


def names(connection: Connection) -> list[str]:
    """Return the sorted names of all registered online stores."""
    query = sa.select(online_stores.c.name).order_by(online_stores.c.name)
    return [str(name) for name in connection.execute(query).scalars()]


def remove(connection: Connection, name: str) -> None:
    """Remove an online store; raise OnlineStoreNotFound if it is not registered."""
    lock_name(connection, name)
    get(connection, name)
    connection.execute(online_stores.delete().where(online_stores.c.name == name))


def _parse(name: str, text: str) -> OnlineStoreSpec:
    with translate_parse_errors(f"online store {name!r}"):
        return OnlineStoreSpec.from_text(text)
