"""Erasure in online stores: the published values of the entities in all views and generations.

A key of an online store is a prefix, which identifies a view, a group and a generation, and the
canonical bytes of a primary key. All keys of a store are scanned, so that also the values of views
that were deleted are found. Other feature stores and applications may use the same database: a value
belongs to this store if a view of this store names its prefix, or if it has the seal of this store.
Other values are only listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from featurestore.arrow.values import to_array
from featurestore.erasure.areas import Scan
from featurestore.erasure.keys import canonical_text
from featurestore.errors import OnlineStoreUnavailable
from featurestore.hashing.values import BOOL, BYTES, DATE, INTEGER, LARGE_INTEGER, TEXT, TIME
from featurestore.model.erasure import Action, ErasureFinding
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.online import DiscardsBytes, OnlineStore
from featurestore.registry import featuregroups
from featurestore.registry.artifacts import feature_views
from featurestore.serving.columns import PREFIX_BYTES, encode_keys
from featurestore.serving.ownership import find_origin, is_own_state
from featurestore.serving.seals import is_sealed_by, store_tag
from featurestore.serving.state import STATE_PREFIX, GroupId, PublishedView, ViewState
from featurestore.serving.stores import get_online_stores, open_online_store

_DELETED_VIEWS = "views that were deleted"
_UNSEALED = "values without the seal of this store"
_DAYS = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OnlineValues:
    """The values in all registered online stores, and in the embedded one."""

    name = "online values"

    def search(self, scan: Scan) -> list[ErasureFinding]:
        findings = []
        for online, store in _open_stores(scan):
            counts: Counter[str] = Counter()
            try:
                with closing(store):
                    for view, keys in _matching_keys(scan, store, online):
                        counts[view] += len(keys)
            except OnlineStoreUnavailable as error:
                raise OnlineStoreUnavailable(
                    f"An erasure needs all online stores of the feature store. {error.message}",
                    hint=f"{error.hint}; if the database is gone: "
                    f"store.remove_online_store({online!r})",
                ) from error
            for view, count in sorted(counts.items()):
                item, action = f"{online}: {view}", _action_of(view)
                findings.append(ErasureFinding(self.name, item, f"{count:,} values", action, count))
        return findings

    def erase(self, scan: Scan) -> None:
        for online, store in _open_stores(scan):
            with closing(store):
                for view, keys in _matching_keys(scan, store, online):
                    if _action_of(view) == "remove":
                        store.delete(keys)
                if isinstance(store, DiscardsBytes):
                    store.discard_deleted()


def _action_of(view: str) -> Action:
    return "list" if view == _UNSEALED else "remove"


def _open_stores(scan: Scan) -> Iterator[tuple[str, OnlineStore]]:
    """Yield the name and a connection of each online store."""
    session = scan.session
    for spec in get_online_stores(session):
        is_embedded = spec.uri.endswith(session.paths.embedded_online_store)
        # Opening the embedded store would create its file.
        if not is_embedded or session.storage.exists(session.paths.embedded_online_store):
            yield spec.name, open_online_store(session, spec.name)


@dataclass(frozen=True)
class PublishedKeys:
    """The keys with one prefix: those of a group in one generation of a view.

    Attributes:
        view: The title of the view.
        columns: The key in each column of the primary key; see ``Entities.key_columns``.
        names: The primary key; empty if the group was deleted.
        rows: The canonical bytes of the primary keys of matching rows.
    """

    view: str
    columns: Mapping[str, str]
    names: Sequence[str]
    rows: frozenset[bytes]


def _matching_keys(
    scan: Scan, store: OnlineStore, online: str
) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the views and keys of the entities in an online store, some keys at a time."""
    published = dict(_published_keys(scan, store, online))
    tag = store_tag(find_origin(scan.session, online), online=online)
    for batch in store.scan(b""):
        matching: dict[str, list[bytes]] = {}
        unknown: list[bytes] = []
        for key in batch:
            if key.startswith(STATE_PREFIX):
                continue
            scan.scanned[OnlineValues.name] += 1
            keys = published.get(key[:PREFIX_BYTES])
            if _is_match(scan, keys, key[PREFIX_BYTES:]):
                if keys is None:
                    unknown.append(key)
                else:
                    matching.setdefault(keys.view, []).append(key)
        for key, value in zip(unknown, store.read(unknown) if unknown else (), strict=True):
            # The embedded online store is a file of this store.
            is_own = online == EMBEDDED or is_sealed_by(tag, key, value)
            matching.setdefault(_DELETED_VIEWS if is_own else _UNSEALED, []).append(key)
        yield from matching.items()


def _is_match(scan: Scan, keys: PublishedKeys | None, encoded: bytes) -> bool:
    """Return whether an encoded primary key is that of an entity."""
    if keys is not None and encoded in keys.rows:
        return True
    texts = decode_key(encoded)
    if texts is None:
        return False
    if keys is not None and keys.names:
        values_by_name = dict(zip(keys.names, texts, strict=False))
        return scan.entities.match_texts(values_by_name, keys.columns)
    # The columns are unknown: all values must be parts of the key.
    return any(
        all(any(map(value.equals, texts)) for value in entity.values())
        for entity in scan.entities.entities
    )


def _published_keys(
    scan: Scan, store: OnlineStore, online: str
) -> Iterator[tuple[bytes, PublishedKeys]]:
    """Yield the prefixes of all published groups, also of generations that are being replaced."""
    for spec in _registered_views(scan):
        view = PublishedView(spec.name, spec.version, online)
        (content,) = store.read([view.key])
        state = ViewState.parse(content, view)
        if not is_own_state(scan.session, state, online=online):
            continue
        groups = {*state.groups, *((feature.group, feature.version) for feature in spec.features)}
        for group in groups:
            keys = _keys_of(scan, group, f"{spec.name}@v{spec.version}")
            for generation in state.generations():
                yield view.value_prefix(group, generation), keys


def _keys_of(scan: Scan, group: GroupId, view: str) -> PublishedKeys:
    with scan.session.registry.reading() as connection:
        registered = featuregroups.find(connection, *group)
    if registered is None:
        return PublishedKeys(view, {}, (), frozenset())
    spec = registered.spec
    names = spec.primary_key
    rows = list(scan.key_rows.get(group, ()))
    encoded: list[bytes | None] = []
    if rows:
        types = [spec.schema.field(name).type for name in names]
        columns = zip(zip(*rows, strict=True), types, strict=True)
        encoded = encode_keys([to_array(list(values), dtype) for values, dtype in columns])
    return PublishedKeys(
        view,
        scan.entities.key_columns(names, owner=group[0]),
        names,
        frozenset(key for key in encoded if key is not None),
    )


def _registered_views(scan: Scan) -> list[FeatureViewSpec]:
    """Return all versions of all feature views that read a group."""
    views = {}
    with scan.session.registry.reading() as connection:
        for group in {group.spec.name for group in featuregroups.list_all(connection)}:
            for view in feature_views.views_reading(connection, group):
                views[view.name, view.version] = view
    return [views[key] for key in sorted(views)]


def decode_key(encoded: bytes) -> list[str] | None:
    """Return the canonical texts of an encoded primary key; None for other types and other bytes.

    >>> decode_key(bytes.fromhex("05000000000000000161"))
    ['a']
    """
    texts = []
    while encoded:
        type_code, word, encoded = encoded[0], encoded[1:9], encoded[9:]
        number = int.from_bytes(word, "big", signed=type_code != LARGE_INTEGER)
        if len(word) < 8:
            return None
        if type_code in (TEXT, BYTES):
            content, encoded = encoded[:number], encoded[number:]
            if len(content) != number:
                return None
            texts.append(content.hex() if type_code == BYTES else content.decode(errors="replace"))
            continue
        text = _word_text(type_code, number)
        if text is None:
            return None
        texts.append(text)
    return texts


def _word_text(type_code: int, number: int) -> str | None:
    """Return the canonical text of a value of one word."""
    try:
        if type_code == BOOL:
            return canonical_text(bool(number))
        if type_code in (INTEGER, LARGE_INTEGER):
            return str(number)
        if type_code == DATE:
            return canonical_text(date.fromordinal(number + _DAYS))
        if type_code == TIME:
            return canonical_text(_EPOCH + timedelta(microseconds=number))
    except (ValueError, OverflowError):
        return None
    return None
