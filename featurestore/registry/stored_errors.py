"""Removal of name lists from error messages in records and logs.

A list of names ("Available: 'a', 'b'") may contain names that are hidden from a reader. It is
stored as a placeholder, which is replaced with names from the reader's registry when the error is
displayed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, listing
from featurestore.registry import tables
from featurestore.registry.database import ChangeWatch, Registry
from featurestore.registry.hidden import HIDDEN, HiddenObjects, find_hidden_objects

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
_SHOWN = re.compile(rf"\[list of ({'|'.join(_NAME_COLUMNS)})\]")
_WITHHELD = "The error contains names of objects that you are not allowed to read."


def redact_names(registry: Registry, text: str, *, allowed_names: Collection[str]) -> str:
    """Return an error message in which names that are not allowed are replaced by placeholders.

    Args:
        registry: The registry of the entire store.
        text: The error message or hint.
        allowed_names: The names that may remain: those in the definition of the job or run.
    """
    # If the registry cannot be read, names stays None and every quoted string is removed.
    names: Mapping[str, str] | None = None
    private: frozenset[str] = frozenset()
    with suppress(FeatureStoreError), registry.reading() as connection:
        names = _find_names(connection, {match[2] for match in _QUOTED.finditer(text)})
        private = find_hidden_objects(connection, granted=(), reads_store=True).names
    return _redact(
        text, names, private=private.difference(allowed_names), allowed_names=allowed_names
    )


class NameRedactor:
    """Applies ``redact_names`` to many messages, with a cache of the names in the registry.

    The cache is discarded when any process commits to the registry. An object may be shared by
    threads.

    Args:
        registry: The registry of the entire store.
        allowed_names: The names that may remain.
    """

    def __init__(self, registry: Registry, *, allowed_names: Collection[str]) -> None:
        self._registry = registry
        self._allowed = frozenset(allowed_names)
        self._lock = threading.Lock()
        self._watch: ChangeWatch | None = None
        self._state: tuple[int, str] | None = None
        self._private: frozenset[str] = frozenset()
        self._checked: set[str] = set()
        self._names: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection that watches the registry."""
        if self._watch is not None:
            self._watch.close()

    def __call__(self, text: str) -> str:
        """Return a message in which names are replaced by placeholders."""
        quoted = {match[2] for match in _QUOTED.finditer(text)}
        with self._lock:
            try:
                self._read(quoted)
            except FeatureStoreError:
                return _redact(text, None, private=(), allowed_names=self._allowed)
            return _redact(text, self._names, private=self._private, allowed_names=self._allowed)

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
                self._checked, self._names = set(), {}
                self._state = state
            self._names.update(_find_names(connection, set(quoted) - self._checked))
            self._checked.update(quoted)


def redact_hint(
    registry: Registry, hint: str | None, *, allowed_names: Collection[str]
) -> str | None:
    """Return a hint, None if it contains names that are not allowed."""
    if hint is None or redact_names(registry, hint, allowed_names=allowed_names) != hint:
        return None
    return hint


def restore_names(connection: Connection, text: str) -> str:
    """Return a stored error with placeholders replaced by the names visible to the reader."""

    def list_names(match: re.Match[str]) -> str:
        column = _NAME_COLUMNS[match[1]]
        count = connection.execute(sa.select(sa.func.count(sa.distinct(column)))).scalar_one()
        first_names = sa.select(column).distinct().order_by(column).limit(_LISTED)
        names = listing(connection.execute(first_names).scalars())
        return f"{names} and {count - _LISTED} more" if count > _LISTED else names

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
    for kind, column in _NAME_COLUMNS.items():
        query = sa.select(column).where(column.in_(sorted(quoted))).distinct()
        for name in connection.execute(query).scalars():
            names.setdefault(str(name), kind)
    return names
