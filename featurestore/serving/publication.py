"""Publication of feature views to online stores: complete, or only what changed.

A full publication writes a new generation of values; one change of the state record makes readers
use it. Thus readers never see missing entities or groups of two publications in one value.

Before values count as published, the server must have all values: after the last value, the state
record is changed, then the receipts of the values are read. If the server loses writes before, a
receipt is missing; if it does so afterwards, it loses the change of the record, too, or nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from featurestore.errors import (
    InvalidArgument,
    OnlineStoreError,
    OnlineStoreUnavailable,
    OnlineWritesLost,
    PublicationSuperseded,
    PublishedStateDamaged,
    VersionNotFound,
    listing,
)
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.plugins.online import OnlineConfig, OnlineStore, open_config
from featurestore.retrieval.catalog import Pins, RegisteredSpecs, pinned_source
from featurestore.retrieval.view_rows import check_view
from featurestore.serving.incremental import ChangeWriter
from featurestore.serving.layout import ValueLayout
from featurestore.serving.ownership import PublisherLease, check_publisher, find_origin
from featurestore.serving.rows import PublishedGroup, write_all
from featurestore.serving.seals import (
    GenerationWriter,
    Receipt,
    Sealer,
    WrittenValues,
    delete_receipts,
    has_receipts,
    store_tag,
)
from featurestore.serving.state import (
    GRACE,
    GroupId,
    GroupState,
    PublishedView,
    ViewState,
)
from featurestore.serving.stores import StoreClock, online_config
from featurestore.session import Session

_log = logging.getLogger("featurestore.serving")
# Values describe the rows from some time before the publication on, for readers whose measurement
# of the store's clock differs by a few milliseconds.
_SLACK = timedelta(minutes=1)


@dataclass(frozen=True)
class Publication:
    """The result of publishing a feature view.

    Attributes:
        view: The name of the view.
        version: The version of the view.
        online: The name of the online store.
        mode: "full" if all values were written, "incremental" if only changed ones were.
        rows: The number of written values of each group.
        delta_versions: The Delta version of each group that is now published.
        seconds: The duration.
    """

    view: str
    version: int
    online: str
    mode: Literal["full", "incremental"]
    rows: Mapping[str, int] = field(repr=False)
    delta_versions: Mapping[str, int] = field(repr=False)
    seconds: float

    def __repr__(self) -> str:
        rows = sum(self.rows.values())
        return (
            f"Publication({self.view!r}, version={self.version}, online={self.online!r}: "
            f"{self.mode}, {rows:,} rows in {self.seconds:.1f} s)"
        )


def publish(
    session: Session, spec: FeatureViewSpec, *, to: str | None = None, full: bool = False
) -> Publication:
    """Publish the rows of a view's groups to an online store; see ``FeatureStore.publish``.

    Raises:
        InvalidArgument: The view has window aggregates, or a group without primary key.
        FeatureViewBroken: A group no longer has a feature of the view.
        OnlineStoreError: The online store cannot be used.
        OnlineWritesLost: The server lost writes, also while all values were written again.
        PublicationSuperseded: Another process has taken over, since this one did not respond.
        PublishedValueMismatch: Another feature store publishes a view with this name.
    """
    started = time.monotonic()
    check_publishable(session, spec)
    config = online_config(session, to).with_resolved_secret()
    with closing(open_config(config)) as store:
        store.check()
        try:
            published = _publish_once(session, spec, config, store, full=full, complete=full)
        except OnlineWritesLost as error:
            _log.warning("all values are published again: %s", error.message)
            published = _publish_once(session, spec, config, store, full=full, complete=True)
    mode, rows, state = published
    return Publication(
        view=spec.name,
        version=spec.version,
        online=config.name,
        mode=mode,
        rows={format_group_reference(*group): count for group, count in rows.items()},
        delta_versions={
            format_group_reference(*group): group_state.delta_version
            for group, group_state in state.groups.items()
        },
        seconds=time.monotonic() - started,
    )


def _publish_once(
    session: Session,
    spec: FeatureViewSpec,
    config: OnlineConfig,
    store: OnlineStore,
    *,
    full: bool,
    complete: bool,
) -> tuple[Literal["full", "incremental"], dict[GroupId, int], ViewState]:
    """Publish under a new lease; return the mode, the rows of each group, and the final state.

    ``full`` is the argument of the caller, which may replace any record; with ``complete``, all
    values are written.
    """
    clock = StoreClock(store)
    view = PublishedView(spec.name, spec.version, config.name)
    origin = find_origin(session, config.name)
    lease = PublisherLease(
        store,
        clock,
        view,
        origin=origin,
        check=partial(check_publisher, session, view=view, full=full),
        replaces_damaged=full,
    )
    with lease:
        tag = store_tag(origin, online=config.name)
        publisher = _Publisher(session, spec, view, config, store, clock, lease, tag)
        publisher.remove_retired_generations()
        pins = Pins(session, RegisteredSpecs(session))
        groups = []
        for group, columns in _columns_by_group(spec).items():
            source = pins.source(group)
            groups.append(PublishedGroup(source, ValueLayout.for_group(source.spec, columns)))
        mode, rows = publisher.publish(groups, full=complete)
    return mode, rows, lease.state


def check_publishable(session: Session, spec: FeatureViewSpec) -> None:
    """Check that a view can be published.

    Raises:
        InvalidArgument: The view has window aggregates, or a group without primary key.
        FeatureViewBroken: A group no longer has a feature of the view.
    """
    registered = RegisteredSpecs(session)
    check_view(spec, registered, action="published")
    if spec.windows:
        windows = [str(feature.window) for feature in spec.features if feature.window is not None]
        target = f"{spec.name}_windows"
        raise InvalidArgument(
            f"Feature view {spec.name!r} has window aggregates, whose values change without a "
            f"write: {listing(windows)}.",
            hint=f"featurestore.window_job({target!r}, {windows}, every='1h', "
            f"featuregroup={target!r}) in a job file writes them to a feature group, which a view "
            "can use instead",
        )
    unkeyed = [
        format_group_reference(name, version)
        for name, version in _columns_by_group(spec)
        if not registered[name][version].primary_key
    ]
    if unkeyed:
        raise InvalidArgument(
            f"Feature view {spec.name!r} cannot be published: {listing(unkeyed)} has no primary "
            "key by which an online store could find its rows.",
            hint="create the group with primary_key=[...]",
        )


def _columns_by_group(spec: FeatureViewSpec) -> dict[tuple[str, int], list[str]]:
    """Return the columns of each group that a view reads, without the label group."""
    columns: dict[tuple[str, int], list[str]] = {}
    for feature in spec.features:
        columns.setdefault((feature.group, feature.version), []).append(feature.column)
    return columns


@dataclass(frozen=True)
class _Publisher:
    """The owner of the lease of a view, which writes its values."""

    session: Session
    spec: FeatureViewSpec
    view: PublishedView
    config: OnlineConfig
    store: OnlineStore
    clock: StoreClock
    lease: PublisherLease
    tag: bytes

    def publish(
        self, groups: Sequence[PublishedGroup], *, full: bool
    ) -> tuple[Literal["full", "incremental"], dict[GroupId, int]]:
        """Write what changed if it can be determined, else all values."""
        if full or not self._can_write_changes(groups):
            return "full", self.publish_all(groups)
        generation = self.lease.state.generation
        try:
            return "incremental", {group.id: self.publish_changes(group) for group in groups}
        except VersionNotFound:
            # The files of the published version have been removed.
            return "full", self.publish_all(groups)
        except (PublicationSuperseded, OnlineWritesLost):
            self._abandon(generation)
            raise

    def _can_write_changes(self, groups: Sequence[PublishedGroup]) -> bool:
        """Return whether the groups are published with the same columns of the same history."""
        published = self.lease.state.groups
        if set(published) != {group.id for group in groups}:
            return False
        # The server may have lost values since.
        if self.lease.state.server != self.lease.server:
            return False
        for group in groups:
            state = published[group.id]
            # External groups have no versions to compare.
            is_same = (state.table_id, state.fingerprint) == (
                group.source.table_id,
                group.layout.fingerprint,
            )
            if not is_same or group.spec.external is not None:
                return False
            # The table may have been restored from a backup, and written again.
            commits = {state.delta_version: state.commit}
            if state.target is not None:
                commits[state.target] = state.target_commit
            for version, commit in commits.items():
                if commit is None or group.commit_sha256(version) != commit:
                    return False
        return True

    def publish_changes(self, group: PublishedGroup) -> int:
        """Write the values of a group that changed since its published version."""
        state = self.lease.state.groups[group.id]
        version = group.source.delta_version
        count = 0
        # An interrupted publication is completed first: some values have its version.
        for target in sorted({state.target or version, version}):
            if target <= state.delta_version or target > version:
                continue
            pinned = replace(group, source=pinned_source(group.source.path, delta_version=target))
            now = self.clock.now()
            unfinished = replace(state, target=target, target_commit=group.commit_sha256(target))
            self._update_group(group, unfinished)
            written_values = ChangeWriter(
                self.session.engine,
                pinned,
                state.delta_version,
                self.store,
                self._writer(group.id, self.lease.state.generation),
                self.view,
                now - _SLACK,
            ).write()
            state = pinned.state(now)
            with self._confirming(written_values.receipts):
                self._update_group(group, state)
            count += written_values.rows
        return count

    def _update_group(self, group: PublishedGroup, group_state: GroupState) -> None:
        self.lease.update(lambda state: state.with_group(group.id, group_state))

    def publish_all(self, groups: Sequence[PublishedGroup]) -> dict[GroupId, int]:
        """Write a new generation of all values, and return the number of rows of each group."""
        generation = self.lease.token
        self.lease.update(lambda state: state.with_unfinished(generation))
        now = self.clock.now()
        try:
            values_by_group = {
                group.id: self._write_group(group, generation, now) for group in groups
            }
            states = {group.id: group.state(now) for group in groups}
            receipts = [
                receipt for values in values_by_group.values() for receipt in values.receipts
            ]
            with self._confirming(receipts):
                self.lease.update(partial(self._switch, generation=generation, groups=states))
        except (PublicationSuperseded, OnlineWritesLost):
            self._abandon(generation)
            raise
        return {group: values.rows for group, values in values_by_group.items()}

    def _write_group(self, group: PublishedGroup, generation: int, now: datetime) -> WrittenValues:
        """Write all values of a group."""
        try:
            return write_all(
                self.session.engine,
                group,
                config=self.config,
                writer=self._writer(group.id, generation),
                horizon=now - _SLACK,
            )
        except Exception as error:
            # No reader uses these values, whose memory a full server needs for any other write. The
            # next publication removes the rest.
            if not isinstance(error, OnlineStoreUnavailable):
                with suppress(OnlineStoreError):
                    self._delete_generation(generation)
            raise

    def _switch(
        self, state: ViewState, *, generation: int, groups: Mapping[GroupId, GroupState]
    ) -> ViewState:
        """Return the state after readers use a new generation."""
        switched = replace(
            state,
            generation=generation,
            groups=groups,
            server=self.lease.server,
        )
        return switched.with_retired(state.generation, self.clock.now())

    @contextmanager
    def _confirming(self, receipts: Sequence[Receipt]) -> Iterator[None]:
        """Check that the server has all written values before the block publishes them.

        Raises:
            OnlineWritesLost: The server lost writes, or new connections have another server.
        """
        # After the values: a server that loses a value later loses this change first.
        self.lease.update(lambda state: state)
        with closing(open_config(self.config)) as connected:
            for store in (self.store, connected):
                if not has_receipts(store, receipts):
                    raise self.lease.lost_writes_error()
                self.lease.check_record(store)
        yield
        # Nothing needs them after the publication, which does not fail any more.
        with suppress(OnlineStoreError):
            delete_receipts(self.store, receipts)

    def _abandon(self, generation: int) -> None:
        """Let the values of a generation be removed that this process wrote without its lease.

        The process that has taken over may have removed the generation before.
        """
        with suppress(OnlineStoreError, PublishedStateDamaged):
            if not self.lease.retire(generation):
                self._delete_generation(generation)

    def remove_retired_generations(self) -> None:
        """Delete the values of generations that no reader uses any more."""
        limit = self.clock.now() - GRACE
        expired = {record for record in self.lease.state.retired if record.since < limit}
        for record in expired:
            self._delete_generation(record.generation)
        if expired:
            # After the values, so that an interrupted removal is repeated.
            self.lease.update(lambda state: state.without_retired(expired))

    def _delete_generation(self, generation: int) -> None:
        for group in _columns_by_group(self.spec):
            self.store.delete_prefix(self.view.value_prefix(group, generation))

    def _writer(self, group: GroupId, generation: int) -> GenerationWriter:
        sealer = Sealer(self.view.value_prefix(group, generation), self.tag)
        return GenerationWriter(sealer, epoch=self.lease.token)
