"""Places outside of a store that an erasure does not search: catalogs, and shared databases."""

from __future__ import annotations

from collections.abc import Iterator

from featurestore.errors import FormatTooNew, InvalidArgument, MissingExtra
from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.catalog import CatalogSource
from featurestore.plugins.source import find_source
from featurestore.registry import jobs, sources
from featurestore.serving.purge import count_other_keys
from featurestore.serving.stores import get_online_stores
from featurestore.session import Session


def places_not_searched(session: Session) -> tuple[str, ...]:
    """Return a line for each place that may have copies of the store's metadata or values."""
    return (*_catalogs(session), *_shared_databases(session))


def _catalogs(session: Session) -> Iterator[str]:
    """Yield the catalogs in which tables were or may have been registered."""
    with session.registry.reading() as connection:
        registered_sources = sources.list_all(connection)
        registered_jobs = jobs.list_all(connection)
    schemas: dict[str, list[str]] = {}
    for source in registered_sources:
        try:
            factory = find_source(source.kind)
        except (InvalidArgument, MissingExtra):  # not installed on this machine
            continue
        if isinstance(factory, type) and issubclass(factory, CatalogSource):
            schemas[source.name] = []
    for job in registered_jobs:
        target = job.spec.registers
        if target is not None:
            # The job may run on another machine, which has the library of the catalog.
            by_source = schemas.setdefault(target.source, [])
            by_source.append(f"schema {target.schema!r} by the job {job.spec.name!r}")
    for name, by_source in sorted(schemas.items()):
        registered = ", ".join(["tables of register_in", *by_source])
        yield f"catalog {name!r}: descriptions and columns of registered tables ({registered})"


def _shared_databases(session: Session) -> Iterator[str]:
    """Yield the online stores whose database has keys of other stores and applications."""
    for spec in get_online_stores(session):
        if spec.name == EMBEDDED:
            continue
        try:
            other_keys = count_other_keys(session, spec.name)
        except FormatTooNew:
            yield f"online store {spec.name!r}: values of a newer release in its database"
            continue
        if other_keys:
            yield (
                f"online store {spec.name!r}: {other_keys:,} keys of other feature stores and "
                "applications in its database"
            )
