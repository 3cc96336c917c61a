"""The interface of value decoders, and the conversion of bytes to text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Decoded:
    """Decoded columns of values, with the reason of each unreadable record (else null).

    ``deletes`` marks records that delete their key; None for none. ``fields`` are record fields
    that are part of the value (``model.stream.RECORD_FIELDS``).
    """

    columns: Mapping[str, pa.Array]
    reasons: pa.Array
    deletes: pa.Array | None = None
    fields: Mapping[str, pa.Array] = field(default_factory=dict)


class Values(Protocol):
    """A decoder of one value format."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values."""
        ...


def as_texts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Convert binary values to texts; also return which of them are not text."""
    try:
        texts = values.cast(pa.string())
        return texts, pa.array([False] * len(values), pa.bool_())
    except pa.ArrowInvalid:
        pass
    texts_or_null: list[str | None] = []
    broken = []
    for value in values.to_pylist():
        try:
            text = None if value is None else value.decode()
            is_broken = False
        except UnicodeDecodeError:
            text, is_broken = None, True
        texts_or_null.append(text)
        broken.append(is_broken)
    return pa.array(texts_or_null, pa.string()), pa.array(broken, pa.bool_())
