"""Digests of key values, by which a certificate is compared with a store.

Columns are compared by the digests of their distinct values. Bytes are searched with a rolling hash,
whose parameters need the key of the store.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from featurestore.erasure.keys import is_word, text_forms
from featurestore.model.json_object import JsonObject

_CHUNK = 1 << 18
_MASK_BYTES = 16


@dataclass(frozen=True)
class Fingerprint:
    """A form of a value in a certificate: its length and rolling hash, and its digest."""

    length: int
    rolling: int
    digest: bytes
    factor: int

    def occurs_in(self, data: bytes, key: bytes) -> bool:
        """Return whether bytes contain the form as a separate word."""
        step = _CHUNK - self.length
        for start in range(0, max(len(data) - self.length + 1, 0), step):
            chunk = np.frombuffer(data[start : start + _CHUNK], np.uint8)
            for offset in self._candidates(chunk):
                word = data[start + offset : start + offset + self.length]
                if keyed_digest(key, word) == self.digest and is_word(
                    data, start + offset, self.length
                ):
                    return True
        return False

    def _candidates(self, chunk: np.ndarray[Any, np.dtype[np.uint8]]) -> list[int]:
        if len(chunk) < self.length:
            return []
        powers = _powers(self.factor)[: len(chunk) + 1]
        sums = np.zeros(len(chunk) + 1, np.uint64)
        np.cumsum((chunk.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
        count = len(chunk) - self.length + 1
        # The window that starts at i has the sum of its bytes times factor**(i + 1 ...).
        windows = sums[self.length :][:count] - sums[:count]
        expected = np.uint64(self.rolling) * powers[:count]
        return [int(offset) for offset in np.flatnonzero(windows == expected)]


@lru_cache(maxsize=8)  # all forms of a value have the same factor
def _powers(factor: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    factors = np.full(_CHUNK + 1, factor, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def fingerprint_of(form: bytes, *, factor: int, key: bytes) -> Fingerprint:
    """Return the fingerprint of a form of a value."""
    rolling = 0
    for position, byte in enumerate(form):
        rolling += (byte + 1) * pow(factor, position, 1 << 64)
    return Fingerprint(len(form), rolling % (1 << 64), keyed_digest(key, form), factor)


def keyed_digest(key: bytes, data: bytes) -> bytes:
    """Return a digest that only the owner of the key can compute."""
    return hashlib.blake2b(data, key=key, digest_size=32).digest()


@dataclass(frozen=True)
class DigestedValue:
    """A key value in a certificate: digests with the key of the store and a salt."""

    key: bytes
    digest: bytes
    fingerprints: tuple[Fingerprint, ...]

    @classmethod
    def of(cls, text: str, *, key: bytes) -> DigestedValue:
        """Return the digests of a value; ``key`` belongs to one value of one certificate."""
        factor = _rolling_factor(key)
        fingerprints = tuple(
            fingerprint_of(form, factor=factor, key=key) for form in text_forms(text)
        )
        return cls(key, keyed_digest(key, text.encode("utf-8", "surrogatepass")), fingerprints)

    def equals(self, text: str) -> bool:
        return keyed_digest(self.key, text.encode("utf-8", "surrogatepass")) == self.digest

    def occurs_in(self, data: bytes) -> bool:
        return any(fingerprint.occurs_in(data, self.key) for fingerprint in self.fingerprints)

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, the inverse of ``from_json``; lengths and hashes are masked."""
        forms = [
            {
                "digest": fingerprint.digest.hex(),
                "search": mask(
                    self.key,
                    fingerprint.digest,
                    fingerprint.length.to_bytes(8, "big") + fingerprint.rolling.to_bytes(8, "big"),
                ),
            }
            for fingerprint in self.fingerprints
        ]
        return {"digest": self.digest.hex(), "forms": forms}

    @classmethod
    def from_json(cls, data: JsonObject, *, key: bytes) -> DigestedValue:
        """Parse the output of ``to_json``.

        Raises:
            MalformedJson: A field is missing or invalid.
        """
        factor = _rolling_factor(key)
        fingerprints = []
        for form in data.objects("forms"):
            digest = bytes.fromhex(form.text("digest"))
            content = unmask(key, digest, form.text("search"))
            length, rolling = (
                int.from_bytes(number, "big") for number in (content[:8], content[8:])
            )
            # With another key, the unmasked length is a random number.
            fingerprints.append(
                Fingerprint(max(min(length, _CHUNK // 2), 1), rolling, digest, factor)
            )
        return cls(key, bytes.fromhex(data.text("digest")), tuple(fingerprints))


def _rolling_factor(key: bytes) -> int:
    # Odd, so that no window loses its first bytes.
    return int.from_bytes(keyed_digest(key, b"rolling")[:8], "big") | 1


def mask(key: bytes, digest: bytes, content: bytes) -> str:
    """Return 16 bytes as a text that only the owner of the key can read; digests must differ."""
    stream = hmac.digest(key, b"mask" + digest, "sha256")[:_MASK_BYTES]
    masked = bytes(byte ^ mask_byte for byte, mask_byte in zip(content, stream, strict=True))
    return base64.b64encode(masked).decode()


def unmask(key: bytes, digest: bytes, text: str) -> bytes:
    """Return the bytes that ``mask`` converted to a text; other bytes for another key."""
    stream = hmac.digest(key, b"mask" + digest, "sha256")[:_MASK_BYTES]
    masked = base64.b64decode(text)[:_MASK_BYTES].ljust(_MASK_BYTES, b"\0")
    return bytes(byte ^ mask_byte for byte, mask_byte in zip(masked, stream, strict=True))
