"""Seals of published values: the tag of the feature store that wrote a value, and a checksum.

A published value is an encoded value followed by the tag (4 bytes) and the CRC-32 of its key, the
value and the tag (4 bytes, little-endian). The key starts with the hash of the view, the group, both
versions and the generation. A value that was damaged, shortened, extended or moved from another key
therefore has another checksum. A checksum does not prove who wrote a value: a person who may write
to the online store can compute it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from featurestore.model.online_store import EMBEDDED
from featurestore.serving.columns import PREFIX_BYTES
from featurestore.serving.state import Origin

SEAL_BYTES = 8
_TAG_BYTES = 4
# The CRC-32 of any bytes followed by their CRC-32.
_RESIDUE = 0x2144DF1C


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
