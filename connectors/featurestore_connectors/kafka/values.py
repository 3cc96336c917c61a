"""What a way of writing values gives of a batch of records, and texts of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Decoded:
    """Columns of values, and per record why it cannot be read (null: it can).

    ``deletes`` marks records that delete their key; None for none. ``fields`` are columns of what
    values tell of their records (``model.stream.RECORD_FIELDS``).
    """

    columns: Mapping[str, pa.Array]
    reasons: pa.Array
    deletes: pa.Array | None = None
    fields: Mapping[str, pa.Array] = field(default_factory=dict)


class Values(Protocol):
    """One way in which values are written."""

    def decode(self, values: pa.Array) -> Decoded:
        """Return what binary values hold."""
        ...


def as_texts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return binary values as texts, and which of them are none."""
    try:
        texts = values.cast(pa.string())
        return texts, pa.array([False] * len(values), pa.bool_())
    except pa.ArrowInvalid:
        pass
    found: list[str | None] = []
    broken = []
    for value in values.to_pylist():
        try:
            found.append(None if value is None else value.decode())
            broken.append(False)
        except UnicodeDecodeError:
            found.append(None)
            broken.append(True)
    return pa.array(found, pa.string()), pa.array(broken, pa.bool_())
