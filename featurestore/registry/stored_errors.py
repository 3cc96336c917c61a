"""Text for readers from exceptions: in records, logs, alerts and responses.

A list of names ("Available: 'a', 'b'") may contain names that are hidden from a reader. It is
stored as a placeholder, which is replaced with names from the reader's registry when the error is
displayed. Counts of objects are removed, and so are the details of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, listing
from featurestore.model.reader_text import remove_location, remove_machine_details
from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import tables
from featurestore.registry.database import ChangeWatch, Registry
from featurestore.registry.hidden import HIDDEN, HiddenObjects, find_hidden_objects
from featurestore.registry.rows import location_of

_NAME_COLUMNS = {
    "feature groups": tables.featuregroups.c.name,
    "training datasets": tables.training_datasets.c.name,
    "feature views": tables.feature_views.c.name,
    "jobs": tables.job_states.c.name,
    "models": tables.models.c.name,
    "experiments": tables.experiment_runs.c.name,
    "runs": tables.experiment_runs.c.id,
    "sources": tables.sources.c.name,
    "online stores": tables.online_stores.c.name,
    "alert channels": tables.alert_channels.c.name,
    "users": tables.users.c.name,
}
_LISTED = 10  # the maximum number of names listed in an error
_HIDDEN_NAME = "[...]"
# A quoted name, optionally with a feature, version or parameter: 'visits', "visits.pay", 'a=3'.
_QUOTED = re.compile(r"""(['"`])([a-z0-9][a-z0-9_-]*)((?:[.@:=][^'"`\s]*| version \d+)?)\1""")
_WORD = re.compile(r"[a-z0-9_]+")
_MARK = rf"\[list of (?:{'|'.join(_NAME_COLUMNS)})\]|{re.escape(_HIDDEN_NAME)}"
_MARKS = re.compile(rf"({_MARK})(?:(?:, | and )(?:{_MARK}))*(?: and \d+ more)?")
# A number of objects, which includes hidden objects: "in 7 feature groups".
_COUNT = re.compile(
    rf"\b\d[\d,]*(?: of the)? (?=(?:{'|'.join(noun.removesuffix('s') for noun in _NAME_COLUMNS)}"
    r"|group|dataset|view)s?\b)"
)
_SHOWN = re.compile(rf"\[list of ({'|'.join(_NAME_COLUMNS)})\]")
_WITHHELD = "The error contains names of objects that you are not allowed to read."


@dataclass(frozen=True)
class ReaderText:
    """The message and the hint of an error, without what a reader may not know."""

    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nHint: {self.hint}"


def text_for_readers(
    registry: Registry, error: BaseException | str, *, allowed_names: Collection[str] | None = None
) -> ReaderText:
    """Return the text of an error for readers who may not see all objects of the store.

    Paths, addresses, secrets and control characters are removed (``remove_machine_details``). A
    hint that contains any of these is omitted, since it would not work.

    Args:
        registry: The registry of the entire store.
        error: The exception, or its text.
        allowed_names: The names that may remain: those in the definition of the job or run. None:
            the error was raised by a call that sees only what the reader may see.
    """
    hint = error.hint if isinstance(error, FeatureStoreError) else None
    addresses: tuple[str, ...] = ()
    with suppress(FeatureStoreError), registry.reading() as connection:
        addresses = find_addresses(connection, registry)

    def convert(text: str) -> str:
        text = remove_machine_details(text, location=registry.location, addresses=addresses)
        return text if allowed_names is None else _redact_names(registry, text, allowed_names)

    message = convert(error if isinstance(error, str) else message_of(error))
    if hint is not None:
        hint = remove_location(hint, location=registry.location)
        hint = hint if convert(hint) == hint else None
    return ReaderText(message, hint)


def message_of(error: BaseException) -> str:
    """Return the message of an error without its hint; that of other libraries with its class.

    >>> message_of(FeatureStoreError("No rows.", hint="insert some")), message_of(KeyError("k"))
    ('No rows.', "KeyError: 'k'")
    """
    if isinstance(error, FeatureStoreError):
        return error.message
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def find_addresses(connection: Connection, registry: Registry) -> tuple[str, ...]:
    """Return the addresses of sources, online stores, alert channels and the registry."""
    addresses = {registry.url}
    for table in (tables.sources, tables.online_stores):
        for text in connection.execute(sa.select(table.c.spec)).scalars():
            with suppress(ValueError, LookupError, TypeError):  # a damaged registration
                addresses.add(str(json.loads(text)["uri"]))
    addresses.update(map(str, connection.execute(sa.select(tables.alert_channels.c.uri)).scalars()))
    return tuple(sorted(addresses))


def _redact_names(registry: Registry, text: str, allowed_names: Collection[str]) -> str:
    # If the registry cannot be read, names stays None and every quoted string is removed.
    names: Mapping[str, str] | None = None
    private: frozenset[str] = frozenset()
    with suppress(FeatureStoreError), registry.reading() as connection:
        names = _find_names(connection, {match[2] for match in _QUOTED.finditer(text)})
        private = find_hidden_objects(connection, granted=(), reads_store=True).names
    return _redact(
        text, names, private=private.difference(allowed_names), allowed_names=allowed_names
    )


class LogRedactor:
    """Applies ``text_for_readers`` to the records of a log, with a cache of the registry's names.

    The cache is discarded when any process commits to the registry. An object may be shared by
    threads.

    Args:
        registry: The registry of the entire store.
        allowed_names: The names that may remain.
    """

    def __init__(self, registry: Registry, *, allowed_names: Collection[str]) -> None:
        self._registry = registry
        self._allowed = frozenset(allowed_names)
        self._lock = ForkSafeLock()
        self._watch: ChangeWatch | None = None
        self._state: tuple[int, str] | None = None
        self._private: frozenset[str] = frozenset()
        self._checked: set[str] = set()
        self._names: dict[str, str] = {}
        self._addresses: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection that watches the registry."""
        if self._watch is not None:
            self._watch.close()

    def __call__(self, text: str, *, lists_names: bool = True) -> str:
        """Return a record without details of the machine, and without names if it may list them."""
        quoted = {match[2] for match in _QUOTED.finditer(text)} if lists_names else set()
        names: Mapping[str, str] | None
        with self._lock:
            try:
                self._read(quoted)
                names, private = self._names, self._private
            except FeatureStoreError:
                names, private = None, frozenset()
            addresses = self._addresses
        text = remove_machine_details(text, location=self._registry.location, addresses=addresses)
        if not lists_names:
            return text
        return _redact(text, names, private=private, allowed_names=self._allowed)

    def _read(self, quoted: Collection[str]) -> None:
        """Update the cache: private names, and the quoted strings that are names."""
        if self._watch is None:
            self._watch = ChangeWatch(self._registry)
        state = self._watch.state()  # the rows below are read in this state or a later one
        # Only strings that were not checked since the last commit are looked up.
        if state == self._state and self._checked.issuperset(quoted):
            return
        with self._registry.reading() as connection:
            if state != self._state:
                hidden = find_hidden_objects(connection, granted=(), reads_store=True)
                self._private = hidden.names.difference(self._allowed)
                self._addresses = find_addresses(connection, self._registry)
                self._checked, self._names = set(), {}
                self._state = state
            # Other threads read the previous dict without the lock.
            self._names = self._names | _find_names(connection, set(quoted) - self._checked)
            self._checked.update(quoted)


def restore_names(connection: Connection, text: str) -> str:
    """Return a stored error with placeholders replaced by the names visible to the reader.

    Details of the machine are removed again: an earlier release or another program stored them.
    """

    def list_names(match: re.Match[str]) -> str:
        column = _NAME_COLUMNS[match[1]]
        count = connection.execute(sa.select(sa.func.count(sa.distinct(column)))).scalar_one()
        first_names = sa.select(column).distinct().order_by(column).limit(_LISTED)
        names = listing(connection.execute(first_names).scalars())
        return f"{names} and {count - _LISTED} more" if count > _LISTED else names

    text = remove_machine_details(text, location=location_of(connection))
    text = _SHOWN.sub(list_names, text)
    hidden: HiddenObjects | None = connection.info.get(HIDDEN)
    # An error that was stored before a group became private may contain its name.
    if hidden is not None and hidden.is_mentioned_in(text):
        return _WITHHELD
    return text


def _redact(
    text: str,
    names: Mapping[str, str] | None,
    *,
    private: Collection[str],
    allowed_names: Collection[str],
) -> str:
    """Return a string without names; if ``names`` is None, every quoted string counts as a name.

    >>> names = {"visits": "feature groups", "pay": "feature groups"}
    >>> text = "Unknown group 'visitz'. Available: 'pay', 'visits' and 3 more."
    >>> _redact(text, names, private=(), allowed_names=["visitz"])
    "Unknown group 'visitz'. Available: [list of feature groups]."
    """

    def mark(match: re.Match[str]) -> str:
        _, name, suffix = match.groups()
        if name in allowed_names or (names is not None and name not in names):
            return match[0]
        return _HIDDEN_NAME if suffix or names is None else f"[list of {names[name]}]"

    text = _COUNT.sub("the ", text)
    # Quoted names are marked first, so that a list of names becomes one placeholder for its kind.
    text = _QUOTED.sub(mark, text)
    if private:
        text = _WORD.sub(lambda match: _HIDDEN_NAME if match[0] in private else match[0], text)
    return _MARKS.sub(lambda match: match[1], text)


def _find_names(connection: Connection, quoted: Collection[str]) -> dict[str, str]:
    """Return the quoted strings that are names in the store, with their kinds."""
    names: dict[str, str] = {}
    if not quoted:
        return names
    for object_kind, column in _NAME_COLUMNS.items():
        query = sa.select(column).where(column.in_(sorted(quoted))).distinct()
        for name in connection.execute(query).scalars():
            names.setdefault(str(name), object_kind)
    return names
