"""Connections to stores: ``connect`` opens a ``FeatureStore``, whose calls ``facade`` composes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from featurestore import config
from featurestore._imports import uninterrupted
from featurestore.config import check_remote
from featurestore.errors import InvalidArgument
from featurestore.model.arguments import with_suggestions
from featurestore.plugins.engine import find_engine
from featurestore.plugins.remote import is_address
from featurestore.session import Session
from featurestore.storage import files, storage_for
from featurestore.storage.connections import use_options
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
) -> FeatureStore:
    """Connect to the store at a directory and make it the module's current store.

    Args:
        location: Directory, ``s3://bucket/prefix``, ``hdfs://namenode:port/path``, or
            ``http://host:8787`` of ``featurestore serve``; else ``$FEATURESTORE_LOCATION``,
            featurestore.toml found upwards, ``./featurestore-data``.
        engine: "duckdb" (default), "spark" or any entry point of
            ``featurestore.plugins.engine``.
        registry: SQLAlchemy URL; default is SQLite in the location. A URI needs one: Postgres, or
            a SQLite file of this machine, which is a cache: ``featurestore registry rebuild`` makes
            it from the files at the URI.
        durability: "full" (default): a commit is on disk, with all files that it names, when the
            call returns. "fast": when the operating system writes it, so that a power loss may take
            or damage the last commits; else ``$FEATURESTORE_DURABILITY``. On Spark the file system
            decides. What an object store has taken is durable; of HDFS its datanodes decide.
        storage_options: How to reach the storage of a URI: ``aws_region``, ``aws_endpoint_url``,
            ``aws_access_key_id``, ..., or settings of Hadoop's client; else the environment and the
            usual files. Credentials are never stored.
        token: What ``featurestore user token`` made, for a served store; else
            ``$FEATURESTORE_TOKEN``.

    >>> with featurestore.connect("my-store") as store:
    ...     store.get_featuregroups()
    []
    """
    with uninterrupted():
        from featurestore import _current
        from featurestore.lineage import emitter as lineage
        from featurestore.recovery import recover
        from featurestore.registry import is_store, open_registry

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
            f"token= is for a served store, and the location is {settings.location!r}.",
            hint="featurestore.connect('http://host:8787', token='fs_...')",
        )
    directory = files.location_of(settings.location)
    if not storage_for(directory).is_local:
        check_remote(directory, settings)
        use_options(directory, storage_options)
    elif storage_options:
        raise InvalidArgument(
            f"storage_options= is for URIs, and the location is {directory!r}.",
            hint="leave it out, or connect('s3://bucket/prefix', ...)",
        )
    read_only = is_store(directory, url=settings.registry) and not files.is_writable(directory)
    if not read_only:
        files.ensure_writable(directory)
    if isinstance(engine, str) or engine is None:
        engine_object = find_engine(settings.engine, durability=settings.durability)
    else:
        engine_object = engine
    durable = is_durable(settings.durability)
    registry_object = open_registry(
        directory, url=settings.registry, read_only=read_only, durable=durable
    )
    lineage.start()
    session = Session(directory, engine_object, registry_object)
    if not read_only:
        recover(session)
    _current.store = FeatureStore(session)
    return _current.store
