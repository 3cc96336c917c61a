"""Erasure in online stores: the published values of the entities in all views and generations.

Keys of an online store are those of the primary keys of a group, so the values are found by the
primary keys of matching rows in any version of the group, and by the keys of the entities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from featurestore.arrow.values import ConversionError, from_json, to_array
from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import KeyValue, KnownValue
from featurestore.errors import FeatureStoreError
from featurestore.model.erasure import ErasureFinding
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.plugins.online import DiscardsBytes, OnlineStore
from featurestore.registry import featuregroups
from featurestore.registry.artifacts import feature_views
from featurestore.serving.columns import encode_keys
from featurestore.serving.state import GroupId, PublishedView, ViewState
from featurestore.serving.stores import get_online_stores, open_online_store
from featurestore.storage import files

_READ_KEYS = 5000


@dataclass(frozen=True)
class ViewValues:
    """The groups of a view in an online store, and the generations whose values may exist."""

    view: PublishedView
    groups: Sequence[GroupId]
    generations: Sequence[int]


class OnlineValues:
    """The values in all registered online stores, and in the embedded one."""

    name = "online values"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for online, store in _open_stores(scan):
            with closing(store):
                for values in _published_values(scan, store, online):
                    count = 0
                    for group in values.groups:
                        scan.scanned[self.name] += 1
                        for keys in _store_keys(scan, values, group):
                            count += sum(value is not None for value in store.read(keys))
                    if count:
                        place = f"{online}: {values.view.name}@v{values.view.version}"
                        findings.append(
                            ErasureFinding(self.name, place, f"{count:,} values", "remove", count)
                        )
        return findings

    def erase(self, scan: Scan) -> None:
        for online, store in _open_stores(scan):
            with closing(store):
                for values in _published_values(scan, store, online):
                    for group in values.groups:
                        for keys in _store_keys(scan, values, group):
                            for key in keys:
                                # No key is the beginning of another key of the group.
                                store.delete_prefix(key)
                if isinstance(store, DiscardsBytes):
                    store.discard_deleted()


def _open_stores(scan: Scan) -> Iterator[tuple[str, OnlineStore]]:
    """Yield the name and a connection of each online store."""
    session = scan.session
    for spec in get_online_stores(session):
        is_embedded = spec.uri.endswith(session.paths.embedded_online_store)
        # Opening the embedded store would create its file.
        if not is_embedded or files.exists(session.paths.embedded_online_store):
            yield spec.name, open_online_store(session, spec.name)


def _published_values(scan: Scan, store: OnlineStore, online: str) -> Iterator[ViewValues]:
    for spec in _registered_views(scan):
        view = PublishedView(spec.name, spec.version, online)
        (content,) = store.read([view.key])
        state = ViewState.parse(content, view)
        generations = {state.generation, *(each.generation for each in state.retired)}
        if state.lease is not None and state.lease.generation is not None:
            generations.add(state.lease.generation)
        generations.discard(0)
        groups = {*state.groups, *((each.group, each.version) for each in spec.features)}
        if generations:
            yield ViewValues(view, sorted(groups), sorted(generations))


def _registered_views(scan: Scan) -> list[FeatureViewSpec]:
    """Return all versions of all feature views that read a group."""
    views = {}
    with scan.session.registry.reading() as connection:
        for group in {group.spec.name for group in featuregroups.list_all(connection)}:
            for view in feature_views.views_reading(connection, group):
                views[view.name, view.version] = view
    return [views[key] for key in sorted(views)]


def _store_keys(scan: Scan, values: ViewValues, group: GroupId) -> Iterator[list[bytes]]:
    """Yield the keys of the entities in an online store, some at a time."""
    keys = sorted(_entity_keys(scan, group))
    for generation in values.generations:
        prefix = values.view.value_prefix(group, generation)
        for start in range(0, len(keys), _READ_KEYS):
            yield [prefix + key for key in keys[start : start + _READ_KEYS]]


def _entity_keys(scan: Scan, group: GroupId) -> set[bytes]:
    """Return the encoded primary keys of the entities in a group."""
    with scan.session.registry.reading() as connection:
        registered = featuregroups.find(connection, *group)
    if registered is None or not registered.spec.primary_key:
        return set()
    spec = registered.spec
    names = spec.primary_key
    types = [spec.schema.field(name).type for name in names]
    rows: list[Sequence[object]] = list(scan.key_rows.get(group, ()))
    columns = scan.entities.key_columns(names, owner=group[0])
    for entity in scan.entities.entities:
        if set(columns) == set(names) and set(columns.values()) <= set(entity):
            row = _typed_key([entity[columns[name]] for name in names], types)
            if row is not None:
                rows.append(row)
    if not rows:
        return set()
    arrays = [
        to_array(list(values), kind)
        for values, kind in zip(zip(*rows, strict=True), types, strict=True)
    ]
    return {key for key in encode_keys(arrays) if key is not None}


def _typed_key(values: Sequence[KeyValue], types: Sequence[pa.DataType]) -> list[object] | None:
    """Convert the texts of keys to the types of a primary key; None if they do not fit."""
    typed: list[object] = []
    for value, kind in zip(values, types, strict=True):
        if not isinstance(value, KnownValue):
            return None
        try:
            typed.append(_parse_text(value.text, kind))
        except (ConversionError, FeatureStoreError, ValueError):
            return None
    return typed


def _parse_text(text: str, kind: pa.DataType) -> object:
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    return from_json(text, kind)
