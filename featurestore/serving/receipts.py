"""Receipts of published values, which show whether a server still has all values of a publication.

A server that restarts from a snapshot, or is replaced by a replica that lags, loses its last writes
and accepts further ones, so that a publication may end without an error. Therefore the last value
of each call that writes is a receipt: the epoch of the publication and the number of values of the
call. After the last call, the receipts are read. A server that has the receipt of a call has all of
its values (see the order of writes in ``OnlineStore``).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from featurestore.plugins.online import OnlineStore
from featurestore.serving.seals import Sealer

# The first byte of the keys of receipts after the prefix; those of values start with a type.
RECEIPT_KIND = b"\xff"
_FORMAT = b"\x01"
_NUMBER_BYTES = 8
_CHUNK = 5000


@dataclass(frozen=True)
class Receipt:
    """The online key of a receipt, and its value."""

    key: bytes
    value: bytes


@dataclass
class WrittenValues:
    """The number of values that calls have written, and the receipts of the calls."""

    rows: int = 0
    receipts: list[Receipt] = field(default_factory=list)

    def add(self, more_values: WrittenValues) -> None:
        """Add the values of other calls."""
        self.rows += more_values.rows
        self.receipts += more_values.receipts


@dataclass(frozen=True)
class GenerationWriter:
    """Writes the values of a group in one generation, with a receipt for each call; picklable.

    ``epoch`` is the number of the publication.
    """

    sealer: Sealer
    epoch: int

    def write(
        self, store: OnlineStore, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> WrittenValues:
        """Set the values of distinct primary keys unconditionally."""
        online_keys, online_values = self._seal(keys, values)
        store.write(online_keys, online_values)
        return WrittenValues(len(keys), [Receipt(online_keys[-1], online_values[-1])])

    def write_newer(
        self, store: OnlineStore, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> WrittenValues:
        """Set each value unless the stored one has the same or a greater sequence.

        ``rows`` of the result is the number of values that were set.
        """
        online_keys, online_values = self._seal(keys, values)
        count = store.write_newer(online_keys, online_values)
        # The receipt is new, unless the store has repeated the call.
        return WrittenValues(max(count - 1, 0), [Receipt(online_keys[-1], online_values[-1])])

    def _seal(
        self, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the online keys and values, those of the receipt last."""
        epoch = self.epoch.to_bytes(_NUMBER_BYTES, "big")
        receipt_key = RECEIPT_KIND + epoch + uuid.uuid4().bytes[:_NUMBER_BYTES]
        # The epoch is in the place of the sequence, which ``write_newer`` requires.
        receipt = _FORMAT + epoch + len(keys).to_bytes(_NUMBER_BYTES, "big")
        return self.sealer.seal([*keys, receipt_key], [*values, receipt])


def has_receipts(store: OnlineStore, receipts: Sequence[Receipt]) -> bool:
    """Return whether an online store has all receipts."""
    return all(
        store.read([receipt.key for receipt in chunk]) == [receipt.value for receipt in chunk]
        for chunk in _chunks(receipts)
    )


def delete_receipts(store: OnlineStore, receipts: Sequence[Receipt]) -> None:
    """Delete receipts, which nothing needs after the publication."""
    for chunk in _chunks(receipts):
        store.delete([receipt.key for receipt in chunk])


def _chunks(receipts: Sequence[Receipt]) -> Iterator[Sequence[Receipt]]:
    """Yield the receipts that are read or deleted in one call."""
    for start in range(0, len(receipts), _CHUNK):
        yield receipts[start : start + _CHUNK]
