"""The keys of erased entities: comparison with columns of rows, and search in bytes.

A key value is compared by its canonical text, so that 5 in an integer column and "5" in a string
column are the same key. Bytes are searched for the forms of a value in files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.errors import InvalidArgument

ERASED = "[erased]"
# Shorter texts occur by chance in logs and descriptions, and so do shorter numbers.
_MIN_TEXT, _MIN_DIGITS = 4, 8
_WORD = re.compile(rb"[0-9A-Za-z]")


def canonical_text(value: object) -> str | None:
    """Return the text of a key value, equal for equal values of all types; None for null.

    >>> canonical_text(5), canonical_text("5"), canonical_text(Decimal("5.00"))
    ('5', '5', '5')

    Raises:
        InvalidArgument: The value cannot be a key.
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, datetime):
        # Times of a store are UTC.
        utc_time = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return utc_time.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.generic):
        plain = value.item()
        if isinstance(value, np.datetime64) and isinstance(plain, int):  # nanoseconds
            plain = value.astype("datetime64[us]").item()
        return canonical_text(plain)
    raise InvalidArgument(
        f"{value!r} of type {type(value).__name__} is not a key value.",
        hint='store.erase({"user": "u-7731"})',
    )


class KeyValue(Protocol):
    """A value of a key: known, or known by its digest."""

    def equals(self, text: str) -> bool:
        """Return whether a canonical text is the value."""
        ...

    def occurs_in(self, data: bytes) -> bool:
        """Return whether bytes contain the value as a separate word.

        Always False for a value that is too short for such a search.
        """
        ...


@dataclass(frozen=True)
class KnownValue:
    """A key value."""

    text: str

    def equals(self, text: str) -> bool:
        return text == self.text

    def occurs_in(self, data: bytes) -> bool:
        return any(_find_words(data, form) for form in self.forms)

    @cached_property
    def forms(self) -> tuple[bytes, ...]:
        """The forms of the value in files; empty if it is too short for a search."""
        return text_forms(self.text)

    def remove_from(self, text: str) -> str:
        """Return a text in which the value is replaced by ``[erased]``."""
        data = text.encode("utf-8", "surrogatepass")
        for form in self.forms:
            for start in sorted(_find_words(data, form), reverse=True):
                data = data[:start] + ERASED.encode() + data[start + len(form) :]
        return data.decode("utf-8", "surrogatepass")


def text_forms(text: str) -> tuple[bytes, ...]:
    """Return the forms of a value in files: UTF-8, JSON, percent-encoded, UTF-16 and UTF-32.

    >>> text_forms("u-7731")[0], text_forms("u-1")
    (b'u-7731', ())
    """
    minimum = _MIN_DIGITS if text.isdigit() else _MIN_TEXT
    if len(text) < minimum or text in ("true", "false"):
        return ()
    texts = [text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], quote(text)]
    # The texts of the search index are in lower case.
    texts.append(text.casefold())
    forms = [form.encode("utf-8", "surrogatepass") for form in texts]
    forms += [text.encode(encoding, "surrogatepass") for encoding in ("utf-16-le", "utf-32-le")]
    return tuple(dict.fromkeys(forms))


def _find_words(data: bytes, form: bytes) -> list[int]:
    """Return the offsets of a form that is not part of a longer word."""
    offsets = []
    start = data.find(form)
    while start >= 0:
        if is_word(data, start, len(form)):
            offsets.append(start)
        start = data.find(form, start + 1)
    return offsets


def is_word(data: bytes, start: int, length: int) -> bool:
    """Return whether bytes neither continue a word nor are continued by one."""
    before, after = data[max(start - 1, 0) : start], data[start + length : start + length + 1]
    starts_word = not (_WORD.match(before) and _WORD.match(data[start : start + 1]))
    ends_word = not (_WORD.match(after) and _WORD.match(data[start + length - 1 : start + length]))
    # An escape of JSON, such as \n, may precede a word.
    is_escaped = start >= 2 and data[start - 2 : start - 1] == b"\\"
    return (starts_word or is_escaped) and ends_word


# -- entities ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entities:
    """The erased entities: for each, the values of its keys.

    ``columns`` maps ``group.column`` to the key that the column contains, if it has another name.
    """

    entities: tuple[Mapping[str, KeyValue], ...]
    columns: Mapping[str, str]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all keys, sorted."""
        return tuple(sorted({key for entity in self.entities for key in entity}))

    @property
    def values(self) -> Iterator[KeyValue]:
        """The values of all keys of all entities."""
        for entity in self.entities:
            yield from entity.values()

    def key_columns(self, names: Sequence[str], *, owner: str = "") -> dict[str, str]:
        """Return the key in each column of a table, by column.

        Args:
            names: The columns of the table.
            owner: The name of the feature group or training dataset.
        """
        key_names = set(self.keys)
        columns = {}
        for name in names:
            key = self.columns.get(f"{owner}.{name}", name)
            if key in key_names:
                columns[name] = key
        return columns

    def is_searchable(self, columns: Mapping[str, str]) -> bool:
        """Return whether all keys of an entity are columns of a table."""
        return any(set(entity) <= set(columns.values()) for entity in self.entities)

    def match_texts(self, texts: Mapping[str, str | None], columns: Mapping[str, str]) -> bool:
        """Return whether the values of one row have all keys of an entity.

        Args:
            texts: The canonical text of each value, by column.
            columns: The key in each column, the result of ``key_columns``.
        """
        for entity in self.entities:
            equal_keys = set()
            for name, text in texts.items():
                key = columns.get(name)
                if key is None or text is None or key not in entity:
                    continue
                if entity[key].equals(text):
                    equal_keys.add(key)
            if equal_keys == set(entity):
                return True
        return False

    def matches(self, batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.BooleanArray:
        """Return which rows of a batch belong to an entity.

        Args:
            batch: The rows.
            columns: The key in each column, the result of ``key_columns``.
        """
        is_match = np.zeros(batch.num_rows, dtype=np.bool_)
        texts = {name: _DistinctTexts(batch.column(name)) for name in columns}
        for entity in self.entities:
            if not set(entity) <= set(columns.values()):
                continue
            is_entity = np.ones(batch.num_rows, dtype=np.bool_)
            for key, value in entity.items():
                # A key may be in several columns, such as the two users of a friendship.
                has_value = np.zeros(batch.num_rows, dtype=np.bool_)
                for name, column_key in columns.items():
                    if column_key == key:
                        has_value |= texts[name].equals(value)
                is_entity &= has_value
            is_match |= is_entity
        return pa.array(is_match)

    def occurs_in(self, data: bytes) -> bool:
        """Return whether bytes contain the values of all keys of an entity, as separate words."""
        return any(
            all(value.occurs_in(data) for value in entity.values()) for entity in self.entities
        )

    def remove_from(self, text: str) -> str:
        """Return a text in which known key values are replaced by ``[erased]``.

        The values of an entity remain if the text contains only some of its values.
        """
        data = text.encode("utf-8", "surrogatepass")
        for entity in self.entities:
            if all(value.occurs_in(data) for value in entity.values()):
                for value in entity.values():
                    if isinstance(value, KnownValue):
                        text = value.remove_from(text)
        return text


class _DistinctTexts:
    """The canonical texts of a column, once for each distinct value."""

    def __init__(self, column: pa.Array) -> None:
        # Lists and structs cannot be keys, and have no dictionaries.
        if pa.types.is_nested(column.type):
            column = pa.nulls(len(column))
        encoded = column.dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        self._indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        self._values = encoded.dictionary

    @cached_property
    def _texts(self) -> list[str | None]:
        try:
            return list(map(canonical_text, self._values.to_pylist()))
        except InvalidArgument:  # lists and numbers with fractions cannot be keys
            return [None] * len(self._values)

    def equals(self, value: KeyValue) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return in which rows the column has a value."""
        if isinstance(value, KnownValue) and pa.types.is_string(self._values.type):
            hits = pc.equal(self._values, value.text).to_numpy(zero_copy_only=False)
        else:
            hits = np.array(
                [text is not None and value.equals(text) for text in self._texts], dtype=np.bool_
            )
        # The last item is that of nulls, whose index is -1.
        return np.append(hits, False).astype(np.bool_)[self._indices]


def parse_entities(subject: object, columns: Mapping[str, str] | None) -> Entities:
    """Parse the arguments of ``erase``: an entity, or several.

    Raises:
        InvalidArgument: An entity has no keys, or a value cannot be a key.
    """
    subjects = [subject] if isinstance(subject, Mapping) else subject
    example = 'store.erase({"user": "u-7731"})'
    if not isinstance(subjects, list | tuple) or not subjects:
        raise InvalidArgument(f"{subject!r} is not an entity.", hint=example)
    entities = []
    for entity in subjects:
        if not isinstance(entity, Mapping) or not entity:
            raise InvalidArgument(f"{entity!r} is not an entity.", hint=example)
        values: dict[str, KeyValue] = {}
        for key, value in entity.items():
            text = canonical_text(value)
            if not isinstance(key, str) or text is None:
                raise InvalidArgument(f"{key!r}: {value!r} is not a key value.", hint=example)
            values[key] = KnownValue(text)
        entities.append(values)
    if not isinstance(columns or {}, Mapping):
        raise InvalidArgument(f"columns={columns!r} is not a mapping.", hint=_COLUMNS_HINT)
    for name, key in (columns or {}).items():
        if not isinstance(name, str) or "." not in name or not isinstance(key, str):
            raise InvalidArgument(f"columns={columns!r} is not a mapping.", hint=_COLUMNS_HINT)
    return Entities(tuple(entities), dict(columns or {}))


_COLUMNS_HINT = 'store.erase({"user": "u-7731"}, columns={"orders.buyer": "user"})'
