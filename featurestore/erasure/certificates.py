"""Certificates of erasures: keyed digests of the keys, in a signed hash chain in the audit log.

The key of the digests and signatures is a file of the store that only its owner can read. Without
it, a certificate neither reveals a value nor confirms a guess. Each certificate contains the hash of
the one before it, so that none can be removed or replaced unnoticed.

Columns are compared by the digests of their distinct values. Bytes are searched with a rolling hash,
whose parameters need the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy.engine import Connection

from featurestore.erasure.keys import Entities, KnownValue, is_word, text_forms
from featurestore.errors import InvalidArgument, StorageError
from featurestore.model.erasure import ErasureFinding
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.times import utc_now
from featurestore.registry import audit_log
from featurestore.registry.audit_log import Actor
from featurestore.session import Session
from featurestore.storage import files, storage_for

ACTION = "erase"
CERTIFICATE_FORMAT = 1
_KEY_FILE = "key"
_KEY_BYTES = 32
_CHUNK = 1 << 18
_MASK_BYTES = 16


def _create_key(session: Session) -> bytes:
    """Return the key of the store's certificates, which the first erasure creates."""
    path = os.path.join(session.paths.erasures, _KEY_FILE)
    if not session.storage.exists(path):
        # Another process may be faster; its key is read then. The folder is private.
        session.storage.write_new(path, secrets.token_hex(_KEY_BYTES).encode())
    return _read_key(path)


def _find_key(session: Session) -> bytes:
    """Return the key of the store's certificates.

    Raises:
        InvalidArgument: The store has issued no certificate.
    """
    path = os.path.join(session.paths.erasures, _KEY_FILE)
    if not session.storage.exists(path):
        raise InvalidArgument(
            "This store has issued no certificate: it has no key of certificates.",
            hint="connect to the store of the erasure, or restore its folder _erasures",
        )
    return _read_key(path)


def _read_key(path: str) -> bytes:
    try:
        key = bytes.fromhex(storage_for(path).read_bytes(path).decode())
    except ValueError as error:
        raise StorageError(
            f"The key of the certificates {path!r} is damaged.", hint="restore it from a backup"
        ) from error
    return key


def issue(
    session: Session,
    entities: Entities,
    *,
    actor: Actor,
    findings: Sequence[ErasureFinding],
    remaining: Sequence[ErasureFinding],
    models: Sequence[str],
    datasets: Mapping[str, str],
    key_hashes: Mapping[tuple[str, ...], Set[bytes]],
    not_searched: Sequence[str],
) -> dict[str, Any]:
    """Sign a certificate, add it to the audit log and to the store, and return it."""
    key = _create_key(session)
    salt = secrets.token_hex(16)
    with session.registry.transaction() as connection:
        chain = _chain(connection)
        body = {
            "format": CERTIFICATE_FORMAT,
            "id": secrets.token_hex(8),
            "time": utc_now().isoformat(timespec="seconds"),
            "by": actor.name,
            "salt": salt,
            "entities": _digests(entities, key, salt),
            "columns": dict(entities.columns),
            "key_hashes": _masked_hashes(key_hashes, key, salt),
            "done": [finding.to_json() for finding in findings],
            "remaining": [finding.to_json() for finding in remaining],
            "models": list(models),
            "datasets": dict(datasets),
            "not_searched": list(not_searched),
            "previous": chain[-1]["hash"] if chain else None,
        }
        certificate = {**body, "hash": _hash(body), "signature": _sign(key, body)}
        audit_log.add(connection, actor, ACTION, str(body["id"]), {"certificate": certificate})
    name = f"{certificate['id']}.json"
    files.write_json(os.path.join(session.paths.erasures, name), certificate)
    return certificate


@dataclass(frozen=True)
class Certificate:
    """A parsed certificate.

    Attributes:
        data: Its fields.
        entities: The entities, with digests instead of values.
        key_hashes: The hashes of primary keys of the entities, by the names of these keys.
    """

    data: JsonObject
    entities: Entities
    key_hashes: dict[tuple[str, ...], set[bytes]]


def parse_certificate(session: Session, certificate: object) -> Certificate:
    """Parse a certificate of this store.

    Raises:
        InvalidArgument: It is not a certificate.
    """
    try:
        data = JsonObject.from_value(certificate)
        key, salt = _find_key(session), data.text("salt")
        entities = []
        number = 0
        for entity in data.objects("entities"):
            values = {}
            for name in entity.data:
                value_key = _value_key(key, salt, number)
                values[name] = DigestedValue.from_json(entity.object(name), key=value_key)
                number += 1
            entities.append(values)
        data.text("id")
        columns = data.object("columns").read_values(JsonObject.text)
        key_hashes = {}
        for entry in data.objects("key_hashes"):
            names, hash_key = entry.texts("key"), _hash_key(key, salt, entry.texts("key"))
            key_hashes[names] = {
                unmask(hash_key, number.to_bytes(8, "big"), text)
                for number, text in enumerate(entry.texts("hashes"))
            }
    except (MalformedJson, ValueError, binascii.Error) as error:
        raise InvalidArgument(
            f"This is not the certificate of an erasure: {error}.",
            hint="store.verify_erasure(report.certificate)",
        ) from error
    return Certificate(data, Entities(tuple(entities), columns), key_hashes)


def find_problems(session: Session, certificate: Mapping[str, Any]) -> list[str]:
    """Return the defects of a certificate and of the chain in the audit log."""
    key = _find_key(session)
    problems = []
    if not _is_signed(key, certificate):
        problems.append("The signature of the certificate is not that of this store.")
    with session.registry.reading() as connection:
        chain = _chain(connection)
    previous: object = None
    is_recorded = False
    for entry in chain:
        is_genuine = entry.get("hash") == _hash(_body_of(entry)) and _is_signed(key, entry)
        if not is_genuine or entry.get("previous") != previous:
            problems.append(
                f"The audit log was changed: the entry of certificate {entry.get('id')} does not "
                "follow the one before it."
            )
        previous = entry.get("hash")
        is_recorded = is_recorded or entry.get("hash") == certificate.get("hash")
    if not is_recorded:
        problems.append("The audit log has no entry of this certificate.")
    return problems


_SEALS = ("hash", "signature")


def _body_of(certificate: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in certificate.items() if name not in _SEALS}


def _is_signed(key: bytes, certificate: Mapping[str, Any]) -> bool:
    # compare_digest refuses strings with characters other than ASCII.
    signature = str(certificate.get("signature")).encode("utf-8", "replace")
    return hmac.compare_digest(signature, _sign(key, _body_of(certificate)).encode())


def _chain(connection: Connection) -> list[Mapping[str, Any]]:
    """Return the certificates in the audit log, oldest first."""
    entries = audit_log.entries_of_action(connection, ACTION)
    certificates = [entry.detail.get("certificate") for entry in entries]
    return [certificate for certificate in certificates if isinstance(certificate, dict)]


def _digests(entities: Entities, key: bytes, salt: str) -> list[dict[str, Any]]:
    digests = []
    number = 0
    for entity in entities.entities:
        values = {}
        for name, value in entity.items():
            assert isinstance(value, KnownValue)
            value_key = _value_key(key, salt, number)
            values[name] = DigestedValue.from_text(value.text, key=value_key).to_json()
            number += 1
        digests.append(values)
    return digests


def _masked_hashes(
    key_hashes: Mapping[tuple[str, ...], Set[bytes]], key: bytes, salt: str
) -> list[dict[str, Any]]:
    """Return hashes that only the owner of the key can read: they confirm guesses of a value."""
    entries = []
    for names, hashes in sorted(key_hashes.items()):
        hash_key = _hash_key(key, salt, names)
        masked = [
            mask(hash_key, number.to_bytes(8, "big"), content)
            for number, content in enumerate(sorted(hashes))
        ]
        entries.append({"key": list(names), "hashes": masked})
    return entries


def _hash_key(key: bytes, salt: str, names: Sequence[str]) -> bytes:
    """Return the key of the hashes of one primary key in one certificate."""
    return hmac.digest(key, json.dumps(["hashes", salt, *names]).encode(), "sha256")


def _value_key(key: bytes, salt: str, number: int) -> bytes:
    """Return the key of one value in one certificate, so that no two digests can be compared."""
    return hmac.digest(key, f"value:{salt}:{number}".encode(), "sha256")


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _sign(key: bytes, body: Mapping[str, Any]) -> str:
    return hmac.digest(key, b"certificate:" + _canonical(body), "sha256").hex()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


# -- digests of values -------------------------------------------------------------------------


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
    def from_text(cls, text: str, *, key: bytes) -> DigestedValue:
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
