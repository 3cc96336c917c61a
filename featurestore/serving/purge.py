"""Removal of published keys that no feature view needs: those of deleted views and old generations.

Keys of other feature stores and applications in the same database are never removed. A key belongs
to this feature store if a state record of this store names its prefix, or if its value has a correct
seal with the tag of this store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from featurestore.errors import PublicationSuperseded, PublishedStateDamaged
from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.online import OnlineStore
from featurestore.recovery.views import VIEWS
from featurestore.registry.artifacts import feature_views
from featurestore.serving.columns import PREFIX_BYTES
from featurestore.serving.ownership import PublisherLease, find_origin, is_held, is_own_state
from featurestore.serving.seals import RECEIPT_KIND, is_sealed_by, store_tag
from featurestore.serving.state import GRACE, STATE_PREFIX, PublishedView, ViewState
from featurestore.serving.stores import StoreClock, open_online_store
from featurestore.session import Session

# The first bytes of encoded keys and receipts.
_VALUE_KINDS = frozenset([RECEIPT_KIND, *[bytes([code]) for code in range(32)]])
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
        skipped_views: Deleted feature views that another process publishes or created again; their
            keys remain.
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
        lines += [
            f"  {view} is published or was created again: its keys remain"
            for view in self.skipped_views
        ]
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
        states = self._states()
        present_views = self._present_views()
        for view, state in states:
            prefixes = _named_prefixes(view, state)
            owners |= dict.fromkeys(prefixes, view)
            if not self._is_own(state):
                needed |= prefixes
                other_keys += sum([counts[prefix] for prefix in prefixes])
            elif (view.name, view.version) in present_views:
                needed |= self._needed_prefixes(view, state)
            elif is_held(state.lease, self._clock.now()):
                needed |= prefixes
                skipped.append(view)
            else:
                deleted.append(view)
        unneeded = {prefix: count for prefix, count in counts.items() if prefix not in needed}
        if not dry_run:
            created_again = [view for view in deleted if not self._remove_view(view)]
            skipped += created_again
            # The record of such a view names its values: the next publication writes only changes.
            unneeded = {
                prefix: count
                for prefix, count in unneeded.items()
                if owners.get(prefix) not in created_again
            }
            # A view that is created again from now on has another generation.
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
        for keys in self._store.scan(STATE_PREFIX):
            for key, content in zip(keys, self._store.read(keys), strict=True):
                view = PublishedView.from_key(key, online=self._online)
                if view is None or content is None:
                    continue
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
                if not key.startswith(STATE_PREFIX):
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
        # A record of an early release without an origin may be that of another feature store.
        is_known = self._online == EMBEDDED or state.origin is not None
        return is_known and is_own_state(self._session, state, online=self._online)

    def _needed_prefixes(self, view: PublishedView, state: ViewState) -> set[bytes]:
        """Return the prefixes that a view in the registry needs, also during its publication."""
        spec = VIEWS.read(
            self._session.paths.feature_view(view.name, view.version), view.name, view.version
        )
        groups = {*state.groups, *[(feature.group, feature.version) for feature in spec.features]}
        generations = state.generations(retired_since=self._clock.now() - GRACE)
        return {view.value_prefix(group, number) for group in groups for number in generations}

    def _remove_view(self, view: PublishedView) -> bool:
        """Remove the state record of a deleted view; False if the view was created again."""

        def check(state: ViewState) -> None:
            is_present = (view.name, view.version) in self._present_views()
            if is_present or not self._is_own(state):
                raise PublicationSuperseded(f"{view.subject} was created again.")

        lease = PublisherLease(self._store, self._clock, view, origin=self._origin, check=check)
        try:
            with lease:
                lease.remove_record()
        except PublicationSuperseded:
            return False
        return True

    def _present_views(self) -> set[tuple[str, int]]:
        with self._session.registry.reading() as connection:
            return set(feature_views.list_all(connection))

    def _remove_values(self, prefixes: Set[bytes]) -> None:
        """Remove all keys with one of several prefixes."""
        for batch in self._store.scan(b"") if prefixes else ():
            keys = [key for key in batch if key[:PREFIX_BYTES] in prefixes]
            if keys:
                self._store.delete(keys)


def _named_prefixes(view: PublishedView, state: ViewState) -> set[bytes]:
    """Return the prefixes that a state record names."""
    return {
        view.value_prefix(group, number) for group in state.groups for number in state.generations()
    }


def _reference(view: PublishedView) -> str:
    return f"{view.name}@v{view.version}"
