"""Removal of published keys that no feature view needs: those of deleted views and old generations.

Keys of other feature stores and applications in the same database are never removed. A key belongs
to this feature store if a state record of this store names its prefix, or if its value has a correct
seal with the tag of this store.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from featurestore.errors import PublicationSuperseded, PublishedStateDamaged
from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.online import OnlineStore
from featurestore.recovery import views
from featurestore.registry.artifacts import feature_views
from featurestore.serving.columns import PREFIX_BYTES
from featurestore.serving.lease import PublisherLease
from featurestore.serving.ownership import find_origin
from featurestore.serving.seals import is_sealed_by, store_tag
from featurestore.serving.state import GRACE, PublishedView, ViewState
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.session import Session

_STATE = b"fs:state:"
_STATE_KEY = re.compile(rb"fs:state:([a-z][a-z0-9_]{0,62}):([1-9]\d{0,8})")
# The first bytes of encoded keys.
_VALUE_KINDS = frozenset([bytes([kind]) for kind in range(32)])
_NO_VIEW = "no state record"
# The values that are read to determine whether keys with an unknown prefix are those of this store.
_SAMPLE = 3


@dataclass(frozen=True)
class PurgeReport:
    """The keys of an online store that belong to no feature view.

    Attributes:
        online: The name of the online store.
        dry_run: Whether the keys were only counted.
        keys: The number of keys by the prefix of their group and generation, in hexadecimal.
        views: The feature view of each prefix, such as "v@v1", or "no state record".
        removed_views: The deleted feature views whose state records were removed.
        skipped_views: Deleted feature views that another process publishes; their keys remain.
        other_keys: The number of keys of other feature stores and applications, which remain.
    """

    online: str
    dry_run: bool
    keys: Mapping[str, int] = field(repr=False)
    views: Mapping[str, str] = field(repr=False)
    removed_views: tuple[str, ...]
    skipped_views: tuple[str, ...]
    other_keys: int

    @property
    def total(self) -> int:
        """The number of keys."""
        return sum(self.keys.values())

    def __repr__(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        counts: Counter[str] = Counter()
        for prefix, count in self.keys.items():
            counts[self.views[prefix]] += count
        lines = [f"online store {self.online!r}: {self.total:,} keys {verb}"]
        lines += [f"  {count:,} of {view}" for view, count in counts.most_common()]
        lines += [f"  {view} is being published" for view in self.skipped_views]
        if self.other_keys:
            lines.append(f"  {self.other_keys:,} keys of other stores and applications remain")
        return "\n".join(lines)


def purge(session: Session, name: str | None = None, *, dry_run: bool = False) -> PurgeReport:
    """Remove the keys that belong to no view; see ``FeatureStore.purge_online_store``."""
    with closing(open_online_store(session, name)) as store:
        store.check()
        return _Purge(session, store).run(dry_run=dry_run)


def count_other_keys(session: Session, name: str) -> int:
    """Return the number of keys of other feature stores and applications in an online store.

    Raises:
        FormatTooNew: A newer release wrote the record of a view.
    """
    with closing(open_online_store(session, name)) as store:
        return _Purge(session, store).run(dry_run=True).other_keys


class _Purge:
    """One removal; the keys are scanned before the state records are read.

    A publication writes the state record before its values, so that the records name the prefixes of
    all scanned values that a view needs.
    """

    def __init__(self, session: Session, store: OnlineStore) -> None:
        self._session, self._store = session, store
        self._online = store.config.name
        self._origin = find_origin(session, self._online)
        self._tag = store_tag(self._origin, online=self._online)
        self._clock = StoreClock(store)

    def run(self, *, dry_run: bool) -> PurgeReport:
        named_prefixes = [_named_prefixes(view, state) for view, state in self._states()]
        counts, other_keys = self._count_values(set().union(*named_prefixes))
        needed: set[bytes] = set()
        owners: dict[bytes, PublishedView] = {}
        deleted, skipped = [], []
        for view, state in self._states():
            prefixes = _named_prefixes(view, state)
            owners |= dict.fromkeys(prefixes, view)
            if not self._is_own(state):
                needed |= prefixes
                other_keys += sum([counts[prefix] for prefix in prefixes])
            elif self._is_present(view):
                needed |= self._needed_prefixes(view, state)
            elif state.lease is not None and state.lease.expires > self._clock.now():
                needed |= prefixes
                skipped.append(view)
            else:
                deleted.append(view)
        unneeded = {prefix: count for prefix, count in counts.items() if prefix not in needed}
        if not dry_run:
            skipped += [view for view in deleted if not self._remove_view(view)]
            # A view that was created again in the meantime has another generation.
            self._remove_values(set(unneeded))
        return PurgeReport(
            online=self._online,
            dry_run=dry_run,
            keys={prefix.hex(): count for prefix, count in sorted(unneeded.items())},
            views={
                prefix.hex(): _reference(owners[prefix]) if prefix in owners else _NO_VIEW
                for prefix in unneeded
            },
            removed_views=tuple([_reference(view) for view in deleted if view not in skipped]),
            skipped_views=tuple(map(_reference, skipped)),
            other_keys=other_keys,
        )

    def _states(self) -> list[tuple[PublishedView, ViewState]]:
        """Return the readable state records.

        Raises:
            FormatTooNew: A newer release wrote a record, so that its values cannot be determined.
        """
        states = []
        for keys in self._store.scan(_STATE):
            for key, content in zip(keys, self._store.read(keys), strict=True):
                match = _STATE_KEY.fullmatch(key)
                if match is None or content is None:
                    continue
                view = PublishedView(match[1].decode(), int(match[2]), self._online)
                # The values of a damaged record cannot be served.
                with suppress(PublishedStateDamaged):
                    states.append((view, ViewState.parse(content, view)))
        return states

    def _count_values(self, named_prefixes: Set[bytes]) -> tuple[Counter[bytes], int]:
        """Return the number of keys by the prefix of this store, and the number of other keys."""
        counts: Counter[bytes] = Counter()
        other_keys = 0
        for batch in self._store.scan(b""):
            by_prefix: dict[bytes, list[bytes]] = {}
            for key in batch:
                if not key.startswith(_STATE):
                    by_prefix.setdefault(key[:PREFIX_BYTES], []).append(key)
            for prefix, keys in by_prefix.items():
                if prefix in named_prefixes or prefix in counts or self._are_own(keys[:_SAMPLE]):
                    counts[prefix] += len(keys)
                else:
                    other_keys += len(keys)
        return counts, other_keys

    def _are_own(self, keys: list[bytes]) -> bool:
        """Return whether a value of some keys has the seal of this store."""
        # Keys of applications are most often texts, and their values large.
        if keys[0][PREFIX_BYTES : PREFIX_BYTES + 1] not in _VALUE_KINDS:
            return False
        values = self._store.read(keys)
        return any(map(partial(is_sealed_by, self._tag), keys, values))

    def _is_own(self, state: ViewState) -> bool:
        return self._online == EMBEDDED or state.origin == self._origin

    def _needed_prefixes(self, view: PublishedView, state: ViewState) -> set[bytes]:
        """Return the prefixes that a view in the registry needs, also during its publication."""
        spec = views.read(
            self._session.paths.feature_view(view.name, view.version), view.name, view.version
        )
        groups = {*state.groups, *[(feature.group, feature.version) for feature in spec.features]}
        since = self._clock.now() - GRACE
        retired = [record.generation for record in state.retired if record.since >= since]
        generations = [*retired, state.generation, *_unfinished(state)]
        return {view.value_prefix(group, number) for group in groups for number in generations}

    def _remove_view(self, view: PublishedView) -> bool:
        """Remove the state record of a deleted view; False if the view was created again."""

        def check(state: ViewState) -> None:
            if self._is_present(view) or not self._is_own(state):
                raise PublicationSuperseded(f"{view.subject} was created again.")

        lease = PublisherLease(self._store, self._clock, view, origin=self._origin, check=check)
        try:
            with lease:
                lease.remove_record()
        except PublicationSuperseded:
            return False
        return True

    def _is_present(self, view: PublishedView) -> bool:
        with self._session.registry.reading() as connection:
            return (view.name, view.version) in feature_views.list_all(connection)

    def _remove_values(self, prefixes: Set[bytes]) -> None:
        """Remove all keys with one of several prefixes."""
        for batch in self._store.scan(b""):
            keys = [key for key in batch if key[:PREFIX_BYTES] in prefixes]
            if keys:
                self._store.delete(keys)


def _named_prefixes(view: PublishedView, state: ViewState) -> set[bytes]:
    """Return the prefixes that a state record names."""
    retired = [record.generation for record in state.retired]
    generations = [*retired, state.generation, *_unfinished(state)]
    return {view.value_prefix(group, number) for group in state.groups for number in generations}


def _unfinished(state: ViewState) -> list[int]:
    """Return the generation that a publication writes, if there is one."""
    if state.lease is None or state.lease.generation is None:
        return []
    return [state.lease.generation]


def _reference(view: PublishedView) -> str:
    return f"{view.name}@v{view.version}"
