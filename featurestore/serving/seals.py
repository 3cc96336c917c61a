"""Seals of published values, and receipts of the calls that write them.

A published value is an encoded value followed by the tag (4 bytes) and the CRC-32 of its key, the
value and the tag (4 bytes, little-endian). The key starts with the hash of the view, the group, both
versions and the generation. A value that was damaged, shortened, extended or moved from another key
therefore has another checksum. A checksum does not prove who wrote a value: a person who may write
to the online store can compute it.

A server that restarts from a snapshot, or is replaced by a replica that lags, loses its last writes
and accepts further ones, so that a publication may end without an error. Therefore the last value
of each call that writes is a receipt: the epoch of the publication and the number of values of the
call. After the last call, the receipts are read. A server that has the receipt of a call has all of
its values (see the order of writes in ``OnlineStore``).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from featurestore.model.online_store import EMBEDDED
from featurestore.plugins.online import OnlineStore
from featurestore.serving.columns import PREFIX_BYTES
from featurestore.serving.state import Origin

SEAL_BYTES = 8
_TAG_BYTES = 4
# The CRC-32 of any bytes followed by their CRC-32.
_RESIDUE = 0x2144DF1C
# The first byte of the keys of receipts after the prefix; those of values start with a type.
RECEIPT_KIND = b"\xff"
_FORMAT = b"\x01"
_NUMBER_BYTES = 8
_CHUNK = 5000


@dataclass(frozen=True)
class Sealer:
    """The prefix of the keys of a group in one generation, and the tag of its values; picklable."""

    prefix: bytes
    tag: bytes

    def seal(
        self, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[list[bytes], list[bytes]]:
        """Return the online keys of primary keys, and the published form of their values.

        >>> keys, values = Sealer(b"prefix00", b"mine").seal([b"key"], [b"value"])
        >>> keys, values[0][:-4], find_damaged(keys, values), find_damaged([b"other"], values)
        ([b'prefix00key'], b'valuemine', None, 0)
        """
        prefix, tag = self.prefix, self.tag
        online_keys = [prefix + key for key in keys]
        tagged_values = [value + tag for value in values]
        checksums = map(crc32, tagged_values, map(crc32, online_keys))
        return online_keys, [
            value + checksum.to_bytes(4, "little")
            for value, checksum in zip(tagged_values, checksums, strict=True)
        ]


def store_tag(origin: Origin, *, online: str) -> bytes:
    """Return the tag of the values that a feature store publishes to an online store.

    >>> store_tag(Origin("/features", 5), online="cache").hex()
    '9c43ecee'
    """
    # The embedded online store is a file of the feature store, and is moved with it.
    text = EMBEDDED if online == EMBEDDED else f"{origin.registered}\0{origin.location}"
    return hashlib.blake2b(text.encode(), digest_size=_TAG_BYTES).digest()


def find_damaged(keys: Sequence[bytes], values: Sequence[bytes | None]) -> int | None:
    """Return the index of a value whose checksum is wrong, or None.

    The value None, of a key without a value, is not damaged.
    """
    try:
        # Most often all keys have values; this needs a seventh of a microsecond for each.
        if set(map(crc32, values, map(crc32, keys))) <= {_RESIDUE}:  # type: ignore[arg-type]
            return None
    except TypeError:
        pass
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        if value is not None and not _is_sealed(key, value):
            return index
    return None


def is_sealed_by(tag: bytes, key: bytes, value: bytes | None) -> bool:
    """Return whether a feature store with this tag published the value of a key."""
    return (
        value is not None
        and len(key) >= PREFIX_BYTES
        and _is_sealed(key, value)
        and value[-SEAL_BYTES:][:_TAG_BYTES] == tag
    )


def _is_sealed(key: bytes, value: object) -> bool:
    # A column of SQLite may contain values of other types.
    return isinstance(value, bytes) and crc32(value, crc32(key)) == _RESIDUE


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
