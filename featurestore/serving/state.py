"""The state record of a published view: what an online store holds, and the publisher's lease.

One process at a time publishes a version of a view: the owner of the lease in the state record,
which extends it with heartbeats. Another process takes the lease over after it expires, or at once
if the owner was a process of this machine that has ended. The former owner may still write values,
but none that a reader prefers: values of a group are ordered by their Delta version, each full
publication has its own generation, and the state record changes only for the owner of the current
token.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from featurestore.errors import PublicationSuperseded, PublishedStateDamaged
from featurestore.model.json_object import JsonObject, MalformedJson, check_format, parse_object
from featurestore.model.times import from_micros
from featurestore.plugins.online import OnlineStore
from featurestore.serving.stores import StoreClock

GroupId = tuple[str, int]
# Releases refuse the state and the values of newer formats.
STATE_FORMAT = 1
_DURATION = timedelta(seconds=30)
_POLL_SECONDS = 0.2
# The owners of this process whose lease ended while the server was not available. A later
# publication of the process takes their lease over, instead of waiting until it expires.
_unreleased_owners: set[str] = set()


@dataclass(frozen=True)
class GroupState:
    """What is published of a group.

    ``delta_version`` is the version of the published rows, ``fingerprint`` and ``columns`` are
    those of their layout. ``target`` is the version that an unfinished publication writes; keys may
    have its values already. ``commit`` and ``target_commit`` are the hashes of the commits of both
    versions, since a table that is restored from a backup repeats version numbers.
    """

    delta_version: int
    table_id: str
    fingerprint: int
    columns: tuple[str, ...]
    published_at: datetime
    commit: str | None
    target: int | None = None
    target_commit: str | None = None

    @classmethod
    def from_json(cls, data: JsonObject) -> GroupState:
        """Parse the fields of a record."""
        return cls(
            delta_version=data.number("delta_version"),
            table_id=data.text("table_id"),
            fingerprint=data.number("fingerprint"),
            columns=data.texts("columns"),
            published_at=_parse_time(data, "published_at"),
            commit=data.optional_text("commit"),
            target=data.optional_number("target"),
            target_commit=data.optional_text("target_commit"),
        )


@dataclass(frozen=True)
class Lease:
    """The right of one process to publish the view until ``expires``.

    ``token`` grows with each lease. ``generation`` is the generation that the owner writes, if it
    replaces all values.
    """

    owner: str
    token: int
    expires: datetime
    generation: int | None = None


@dataclass(frozen=True)
class RetiredGeneration:
    """A generation that no reader needs from some time after ``since``."""

    generation: int
    since: datetime


@dataclass(frozen=True)
class Origin:
    """A feature store: its location, and when it registered the online store, in microseconds."""

    location: str
    registered: int

    def __str__(self) -> str:
        if not self.registered:
            return self.location
        return f"{self.location}, which registered it at {from_micros(self.registered).isoformat()}"


@dataclass(frozen=True)
class ViewState:
    """The state of a published view version; ``generation`` 0 means that nothing is published.

    Readers need ``generation`` and ``groups``. ``origin`` is the feature store that publishes the
    view, since several may use one online store. Only the owner of the lease changes the state.
    """

    generation: int = 0
    groups: Mapping[GroupId, GroupState] = field(default_factory=dict)
    token: int = 0
    lease: Lease | None = None
    retired: tuple[RetiredGeneration, ...] = ()
    origin: Origin | None = None

    @classmethod
    def parse(cls, content: bytes | None) -> ViewState:
        """Parse the output of ``to_bytes``; None, a missing record, is the initial state.

        Raises:
            PublishedStateDamaged: The record cannot be read.
            FormatTooNew: A newer release wrote the record.
        """
        if content is None:
            return cls()
        try:
            data = JsonObject.from_value(parse_object(content))
            subject = "The state record of a published view"
            check_format(data.number("format", minimum=1), STATE_FORMAT, subject=subject)
            return cls._from_json(data)
        except MalformedJson as error:
            raise PublishedStateDamaged(
                f"The state record of a published view cannot be read: {error}.",
                hint="delete the keys of the view and publish it again",
            ) from error

    @classmethod
    def _from_json(cls, data: JsonObject) -> ViewState:
        groups = {
            (group.text("name"), group.number("version")): GroupState.from_json(group)
            for group in data.objects("groups")
        }
        lease = None
        if data.get("lease") is not None:
            lease_json = data.object("lease")
            lease = Lease(
                owner=lease_json.text("owner"),
                token=lease_json.number("token"),
                expires=_parse_time(lease_json, "expires"),
                generation=lease_json.optional_number("generation"),
            )
        origin = None
        if data.get("origin") is not None:
            origin_json = data.object("origin")
            origin = Origin(origin_json.text("location"), origin_json.number("registered"))
        retired = [
            RetiredGeneration(record.number("generation"), _parse_time(record, "since"))
            for record in data.objects("retired")
        ]
        return cls(
            generation=data.number("generation"),
            groups=groups,
            token=data.number("token"),
            lease=lease,
            retired=tuple(retired),
            origin=origin,
        )

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        groups = [
            {"name": name, "version": version, **_to_json(group)}
            for (name, version), group in self.groups.items()
        ]
        lease = None if self.lease is None else _to_json(self.lease)
        data = {
            "format": STATE_FORMAT,
            "generation": self.generation,
            "groups": groups,
            "token": self.token,
            "lease": lease,
            "retired": list(map(_to_json, self.retired)),
            "origin": None if self.origin is None else _to_json(self.origin),
        }
        return json.dumps(data, separators=(",", ":")).encode()

    def with_unfinished(self, generation: int) -> ViewState:
        """Return the state with the generation that the owner of the lease writes."""
        if self.lease is None:
            return self
        return replace(self, lease=replace(self.lease, generation=generation))

    def with_group(self, group: GroupId, state: GroupState) -> ViewState:
        """Return the state with another state of a group."""
        return replace(self, groups={**self.groups, group: state})


def state_key(view: str, version: int) -> bytes:
    """Return the key of a view's state record.

    >>> state_key("late_flights", 1)
    b'fs:state:late_flights:1'
    """
    return f"fs:state:{view}:{version}".encode()


def _to_json(record: GroupState | Lease | Origin | RetiredGeneration) -> dict[str, Any]:
    data = dict(vars(record))
    for name, value in data.items():
        if isinstance(value, datetime):
            data[name] = value.isoformat()
    return data


def _parse_time(data: JsonObject, name: str) -> datetime:
    try:
        return datetime.fromisoformat(data.text(name))
    except ValueError as error:
        raise data.wrong_type_error(name, "a time") from error


class PublisherLease:
    """The lease of this process, as a context manager that waits for the current owner.

    ``state`` is the state record after the last update. ``origin`` is this feature store;
    ``check`` raises for a state that it must not change. Methods may be called from one thread.
    """

    state: ViewState

    def __init__(
        self,
        store: OnlineStore,
        clock: StoreClock,
        view: str,
        version: int,
        *,
        origin: Origin,
        check: Callable[[ViewState], None],
    ) -> None:
        self._store, self._clock = store, clock
        self._origin, self._check = origin, check
        self._view = f"{view} version {version}"
        self._key = state_key(view, version)
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._token = 0
        # The heartbeat and the owner's updates must not replace each other's record.
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        while not self._try_acquire():
            time.sleep(_POLL_SECONDS)
        self._heartbeat.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._heartbeat.join()
        # After an error, the generation that was not completed is removed by the next publication.
        try:
            self.update(lambda state: replace(_retire_unfinished(state, self._clock), lease=None))
        except Exception:
            # For other processes, the lease expires.
            _unreleased_owners.add(self._owner)
            if error is None:
                raise

    @property
    def token(self) -> int:
        """The fencing token, greater than those of all earlier leases of the view."""
        return self._token

    def update(self, change: Callable[[ViewState], ViewState]) -> ViewState:
        """Replace the state record by the result of a function, and extend the lease.

        Raises:
            PublicationSuperseded: Another process has taken over the lease.
        """
        with self._lock:
            while True:
                (content,) = self._store.read([self._key])
                state = ViewState.parse(content)
                if state.lease is None or state.lease.token != self._token:
                    raise PublicationSuperseded(
                        f"Another process has taken over the publication of {self._view}.",
                        hint="publish again if its publication fails",
                    )
                lease = replace(state.lease, expires=self._clock.now() + _DURATION)
                changed = change(replace(state, lease=lease))
                if self._store.compare_and_set(self._key, content, changed.to_bytes()):
                    self.state = changed
                    return changed

    def _try_acquire(self) -> bool:
        (content,) = self._store.read([self._key])
        state = ViewState.parse(content)
        self._check(state)
        now = self._clock.now()
        if state.lease is not None and state.lease.expires > now and not _has_ended(state.lease):
            return False
        self._token = state.token + 1
        lease = Lease(self._owner, self._token, now + _DURATION)
        self.state = replace(
            _retire_unfinished(state, self._clock),
            token=self._token,
            lease=lease,
            origin=self._origin,
        )
        return self._store.compare_and_set(self._key, content, self.state.to_bytes())

    def _beat(self) -> None:
        while not self._stopped.wait(_DURATION.total_seconds() / 3):
            try:
                self.update(lambda state: state)
            except PublicationSuperseded:
                # The next update of the owner raises the error.
                return
            except Exception:
                # A transient error of the server; the lease lasts for two more heartbeats.
                continue


def _retire_unfinished(state: ViewState, clock: StoreClock) -> ViewState:
    """Return the state with the generation of the current lease retired if it is unfinished."""
    lease = state.lease
    if lease is None or lease.generation in (None, state.generation):
        return state
    retired = RetiredGeneration(lease.generation or 0, clock.now())
    return replace(state, retired=(*state.retired, retired))


def _has_ended(lease: Lease) -> bool:
    """Return whether the owner was a process of this machine that has ended, or failed."""
    if lease.owner in _unreleased_owners:
        return True
    host, pid, _ = lease.owner.split("/")
    # On Windows, ``os.kill`` would end the process, so only the expiry of the lease counts.
    if host != socket.gethostname() or not hasattr(os, "killpg"):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
