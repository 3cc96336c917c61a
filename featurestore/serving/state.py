"""The state record of a published view: the contents of an online store.

A record is a JSON object whose last field is the checksum of its key and of all bytes before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated

from featurestore.errors import PublishedStateDamaged, PublishedValueDamaged
from featurestore.model.codecs import JSON, Codec, array, parsed
from featurestore.model.json_object import (
    JsonDict,
    JsonObject,
    MalformedJson,
    check_format,
    parse_object,
)
from featurestore.model.records import Record, Valid
from featurestore.model.times import from_micros, to_micros
from featurestore.serving.columns import value_prefix

GroupId = tuple[str, int]
# The keys of state records start with this; those of values are hashes.
STATE_PREFIX = b"fs:state:"
# Releases refuse the state and the values of newer formats.
STATE_FORMAT = 2
# The time for which readers may use a generation after it was replaced.
GRACE = timedelta(minutes=1)
_STATE_KEY = re.compile(STATE_PREFIX + rb"([a-z][a-z0-9_]{0,62}):([1-9]\d{0,8})")
_OWNER = re.compile(r"[^/]+/[1-9]\d{0,8}/[0-9a-f]+")
_CHECKSUM_BYTES = 8


@dataclass(frozen=True)
class PublishedView:
    """A version of a view in an online store."""

    name: str
    version: int
    online: str

    @classmethod
    def from_key(cls, key: bytes, *, online: str) -> PublishedView | None:
        """Return the view of a state record, None for another key.

        >>> PublishedView.from_key(b"fs:state:late_flights:1", online="cache")
        PublishedView(name='late_flights', version=1, online='cache')
        """
        match = _STATE_KEY.fullmatch(key)
        return None if match is None else cls(match[1].decode(), int(match[2]), online)

    def __str__(self) -> str:
        return f"{self.subject[0].lower()}{self.subject[1:]}"

    @property
    def subject(self) -> str:
        """The beginning of a sentence about the view."""
        return f"Feature view {self.name!r} version {self.version}"

    @property
    def key(self) -> bytes:
        """The key of the state record."""
        return state_key(self.name, self.version)

    def value_prefix(self, group: GroupId, generation: int) -> bytes:
        """Return the first bytes of the keys of a group's values in one generation."""
        name, version = group
        return value_prefix(
            self.name, self.version, group=name, group_version=version, generation=generation
        )

    def publish_line(self, *, full: bool = False) -> str:
        """Return the call that publishes the view."""
        arguments = f"{self.name!r}, version={self.version}, to={self.online!r}"
        return f"store.publish({arguments}{', full=True' if full else ''})"

    def damaged_value_error(self) -> PublishedValueDamaged:
        """Return the error for a value that differs from what was published."""
        return PublishedValueDamaged(
            f"A value of {self} in the online store {self.online!r} is damaged: it differs from "
            "what was published for its key.",
            hint=self.publish_line(full=True),
        )


def _parse_time(text: str) -> datetime:
    # Raises an error for a time without a zone, which cannot be compared with others.
    return from_micros(to_micros(datetime.fromisoformat(text)))


ZonedTime = Annotated[datetime, parsed(_parse_time, datetime.isoformat, "a time with a zone", JSON)]


@dataclass(frozen=True)
class GroupState(Record):
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
    published_at: ZonedTime
    commit: str | None
    target: int | None = None
    target_commit: str | None = None


@dataclass(frozen=True)
class Lease(Record):
    """The right of one process to publish the view until ``expires``.

    No other lease has the same ``owner``, or the same ``token``, a random number. ``generation`` is
    the generation that the owner writes, if it replaces all values. ``renewal`` is the number of
    changes of the record under this lease: a smaller one than the owner has written shows that the
    server lost writes.
    """

    owner: Annotated[str, Valid(_OWNER.fullmatch, "the owner of a lease")]
    token: int
    expires: ZonedTime
    generation: int | None = None
    renewal: int = 0


@dataclass(frozen=True)
class RetiredGeneration(Record):
    """A generation that no reader needs from some time after ``since``."""

    generation: int
    since: ZonedTime


@dataclass(frozen=True)
class Origin(Record):
    """A feature store: its location, and when it registered the online store, in microseconds."""

    location: str
    registered: int

    def __str__(self) -> str:
        if not self.registered:
            return self.location
        return f"{self.location}, which registered it at {from_micros(self.registered).isoformat()}"


def _read_group(data: object) -> tuple[GroupId, GroupState]:
    group = JsonObject.from_value(data)
    return (group.text("name"), group.number("version")), GroupState.from_json(data)


def _write_groups(groups: Mapping[GroupId, GroupState]) -> list[JsonDict]:
    return [
        {"name": name, "version": version, **state.to_json()}
        for (name, version), state in groups.items()
    ]


_GROUPS = Codec(array(Codec(_read_group), dict).read, _write_groups)
_SUBJECT = "The state record of a published view"


@dataclass(frozen=True)
class ViewState(Record, format=STATE_FORMAT, oldest_format=STATE_FORMAT, subject=_SUBJECT):
    """The state of a published view version; ``generation`` 0 means that nothing is published.

    Readers need ``generation`` and ``groups``. ``origin`` is the feature store that publishes the
    view, since several may use one online store. ``server`` is the identity of the server that has
    all values of ``generation``; None if it is unknown. Only the owner of the lease changes the
    state, except that former owners retire their generation.
    """

    generation: int = 0
    groups: Annotated[Mapping[GroupId, GroupState], _GROUPS] = field(default_factory=dict)
    lease: Lease | None = None
    retired: tuple[RetiredGeneration, ...] = ()
    origin: Origin | None = None
    server: str | None = None

    @classmethod
    def parse(cls, content: bytes | None, view: PublishedView) -> ViewState:
        """Parse the output of ``to_bytes``; None, a missing record, is the initial state.

        Raises:
            PublishedStateDamaged: The record differs from what was written for the view.
            FormatTooNew: A newer release wrote the record.
        """
        if content is None:
            return cls()
        try:
            # A column of SQLite may contain values of other types.
            if not isinstance(content, bytes):
                raise MalformedJson("it is not a byte string")
            data = JsonObject.from_value(parse_object(content))
            # The first, since the checksum of a newer format may differ.
            format_number = data.number("format", minimum=STATE_FORMAT)
            check_format(format_number, STATE_FORMAT, subject=_SUBJECT)
            if content != _add_checksum(content[:-_SEAL_SIZE], view.key):
                raise MalformedJson("its checksum does not match")
            return cls.from_json(data)
        except MalformedJson as error:
            raise PublishedStateDamaged(
                f"The state record of {view} in the online store {view.online!r} is damaged: "
                f"{error}.",
                hint=view.publish_line(full=True),
            ) from error

    def to_bytes(self, key: bytes) -> bytes:
        """Return the record of a key as JSON with its checksum."""
        text = json.dumps(self.to_json(), separators=(",", ":"))
        return _add_checksum(text.encode()[:-1], key)

    def generations(self, *, retired_since: datetime | None = None) -> set[int]:
        """Return the generations that may have values: published, unfinished and retired ones.

        Args:
            retired_since: Generations that were replaced earlier are left out.
        """
        generations = {self.generation}
        if self.lease is not None and self.lease.generation is not None:
            generations.add(self.lease.generation)
        for retired in self.retired:
            if retired_since is None or retired.since >= retired_since:
                generations.add(retired.generation)
        return generations - {0}

    def with_unfinished(self, generation: int) -> ViewState:
        """Return the state with the generation that the owner of the lease writes."""
        if self.lease is None:
            return self
        return self.with_lease(replace(self.lease, generation=generation))

    def with_lease(self, lease: Lease | None, origin: Origin | None = None) -> ViewState:
        """Return the state with another lease, and the feature store of its owner if it is new."""
        return replace(self, lease=lease, origin=origin or self.origin)

    def with_retired(self, generation: int, since: datetime) -> ViewState:
        """Return the state with a generation that no reader needs from some time after ``since``.

        The published generation and 0 are never retired.
        """
        if generation in (0, self.generation):
            return self
        other_generations = [record for record in self.retired if record.generation != generation]
        return replace(self, retired=(*other_generations, RetiredGeneration(generation, since)))

    def without_retired(self, removed: Set[RetiredGeneration]) -> ViewState:
        """Return the state without generations whose values were removed."""
        retired = tuple([record for record in self.retired if record not in removed])
        return replace(self, retired=retired)

    def with_group(self, group: GroupId, state: GroupState) -> ViewState:
        """Return the state with another state of a group."""
        return replace(self, groups={**self.groups, group: state})


def state_key(view: str, version: int) -> bytes:
    """Return the key of a view's state record.

    >>> state_key("late_flights", 1)
    b'fs:state:late_flights:1'
    """
    return STATE_PREFIX + f"{view}:{version}".encode()


def _add_checksum(content: bytes, key: bytes) -> bytes:
    """Add the checksum as the last field to a JSON object without its closing brace."""
    digest = hashlib.blake2b(key + content, digest_size=_CHECKSUM_BYTES)
    return b'%b,"checksum":"%b"}' % (content, digest.hexdigest().encode())


_SEAL_SIZE = len(_add_checksum(b"", b""))
