"""Connections to stores: ``connect`` opens a ``FeatureStore``, which combines method mixins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from featurestore import config
from featurestore._imports import uninterrupted
from featurestore.config import check_remote
from featurestore.errors import InvalidArgument, RegistryWarning
from featurestore.model.arguments import warn_caller, with_suggestions
from featurestore.plugins.engine import find_engine
from featurestore.plugins.remote import is_address
from featurestore.progress import set_progress
from featurestore.session import DeferredEngine, Session
from featurestore.storage import storage_for
from featurestore.storage.connections import use_options
from featurestore.storage.location import location_of
from featurestore.storage.publication import is_durable
from featurestore.store.facade import FeatureStore

if TYPE_CHECKING:
    from featurestore.plugins.engine import Engine

__all__ = ["FeatureStore", "connect"]


@with_suggestions
def connect(
    location: str | os.PathLike[str] | None = None,
    *,
    engine: str | Engine | None = None,
    registry: str | None = None,
    durability: Literal["full", "fast"] | None = None,
    storage_options: Mapping[str, str] | None = None,
    token: str | None = None,
    progress: bool | None = None,
) -> FeatureStore:
    """Connect to a store and make it the current store of the module.

    Args:
        location: A directory, ``s3://bucket/prefix``, ``gs://bucket/prefix``,
            ``az://container/path``, ``hdfs://namenode:port/path``, or the address
            ``http://host:8787`` of ``featurestore serve``. The default is
            ``$FEATURESTORE_LOCATION``, featurestore.toml in this directory or its parents, or
            ``./featurestore-data``.
        engine: "duckdb" (default), "spark" or the name of an entry point in
            ``featurestore.plugins.engine``.
        registry: SQLAlchemy URL of the registry; the default is a SQLite file in the location. A
            store at a URI requires one: Postgres, or a local SQLite file as a cache, which
            ``featurestore registry rebuild`` creates from the files at the URI.
        durability: "full" (default): when a call returns, its commit and all referenced files are
            synced to disk. "fast": the operating system writes them later, so that a power loss may
            remove or damage the last commits. If None, ``$FEATURESTORE_DURABILITY`` is used. On
            Spark the file system decides. Object stores are always durable; for HDFS the datanodes
            decide.
        storage_options: Settings for access to a URI: ``aws_region``, ``aws_endpoint_url``,
            ``aws_access_key_id``, ..., ``google_application_credentials``, ...,
            ``azure_storage_account_name``, ..., or settings of Hadoop's client. Missing ones are read from
            the environment and the usual configuration files. Credentials are never stored.
        token: A token created by ``featurestore token add``, for a served store; the default is
            ``$FEATURESTORE_TOKEN``.
        progress: Show the progress of calls that take more than two seconds. None: on a terminal
            and in a notebook, unless ``$FEATURESTORE_PROGRESS`` is "on" or "off".

    >>> with featurestore.connect("my-store") as store:
    ...     store.get_featuregroups()
    []
    """
    set_progress(progress)
    # These modules are imported at the first connect, so that importing featurestore stays fast. An
    # interrupted import would leave incomplete modules.
    with uninterrupted():
        from featurestore import _current
        from featurestore.lineage import emitter as lineage
        from featurestore.registry import intents, is_store, open_registry

    engine_name = engine if isinstance(engine, str) or engine is None else None
    settings = config.resolve(
        location=location, engine=engine_name, registry=registry, durability=durability
    )
    if is_address(settings.location):
        from featurestore.store.remote import RemoteFeatureStore

        token = token or os.environ.get("FEATURESTORE_TOKEN")
        _current.store = RemoteFeatureStore(settings.location, token=token)
        return _current.store
    if token is not None:
        raise InvalidArgument(
            f"token= requires the address of a served store, not {settings.location!r}.",
            hint="featurestore.connect('http://host:8787', token='fs_...')",
        )
    directory = location_of(settings.location)
    storage = storage_for(directory)
    if not storage.is_local:
        check_remote(directory, settings)
        use_options(directory, storage_options)
    elif storage_options:
        raise InvalidArgument(
            f"storage_options= requires a URI, not the directory {directory!r}.",
            hint="omit it, or connect('s3://bucket/prefix', ...)",
        )
    # A store in a directory without write access can be read. A new store cannot be created there,
    # which ensure_writable reports.
    read_only = is_store(directory, url=settings.registry) and not storage.is_writable(directory)
    if not read_only:
        storage.ensure_writable(directory)
    engine_source: Engine | DeferredEngine
    # An engine checks its settings in the environment when it is created.
    prefix = f"FEATURESTORE_{settings.engine.upper()}_"
    has_settings = any(name.startswith(prefix) for name in os.environ)
    if not (isinstance(engine, str) or engine is None):
        engine_source = engine
    elif settings.engine == config.DEFAULT_ENGINE and not has_settings:
        engine_source = DeferredEngine(settings.engine, durability=settings.durability)
    else:
        engine_source = find_engine(settings.engine, durability=settings.durability)
    durable = is_durable(settings.durability)
    registry_object = open_registry(
        directory, url=settings.registry, read_only=read_only, durable=durable
    )
    lineage.start()
    session = Session(directory, engine_source, registry_object)
    _warn_unregistered(session)
    # Writes of dead processes are completed or undone before the first call.
    if not read_only:
        with registry_object.reading() as connection:
            needs_recovery = intents.needs_recovery(connection)
        if needs_recovery:
            with uninterrupted():
                from featurestore.recovery import recover
            recover(session)
    # The current store is replaced only after the connection has succeeded.
    _current.store = FeatureStore(session)
    return _current.store


def _warn_unregistered(session: Session) -> None:
    """Warn of objects in a local location that the registry lacks, so that no listing has them."""
    from featurestore.registry import stores, unregistered

    loss = unregistered.loss_of(session.registry)
    if loss is not None:
        hint = stores.rebuild_command(session.location)
        warn_caller(f"{loss} Hint: {hint}", RegistryWarning)
