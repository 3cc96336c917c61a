"""Passwords hashed with argon2, and random secrets stored as SHA-256 digests."""

from __future__ import annotations

import hashlib
import secrets
from functools import cache
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, missing_extra

if TYPE_CHECKING:
    from argon2 import PasswordHasher

TOKEN_PREFIX = "fs_"
_MIN_LENGTH, _MAX_LENGTH = 10, 1000


def hash_password(password: str) -> str:
    """Return the argon2 hash of a password.

    Raises:
        InvalidArgument: The password is too short, or so long that hashing it is expensive.
    """
    if not _MIN_LENGTH <= len(password) <= _MAX_LENGTH:
        raise InvalidArgument(
            f"A password has {_MIN_LENGTH} to {_MAX_LENGTH} characters; this one has {len(password)}.",
            hint="a sentence is easy to remember",
        )
    return _hasher().hash(password)


def is_password(hashed: str | None, password: str) -> bool:
    """Return True if a password matches a hash; takes the same time if the hash is None."""
    from argon2.exceptions import InvalidHashError, VerificationError

    if len(password) > _MAX_LENGTH:
        return False
    try:
        return _hasher().verify(hashed or _dummy_hash(), password) and hashed is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "argon2", "server") from None
    return PasswordHasher()


@cache
def _dummy_hash() -> str:
    return _hasher().hash(secrets.token_urlsafe(32))


def new_secret() -> str:
    """Return a secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the SHA-256 digest under which a secret is stored.

    >>> digest("x")[:8]
    '2d711642'
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def form_token(cookie: str) -> str:
    """Return the form token of a cookie, which other sites cannot compute."""
    return digest(f"form of {cookie}")


def is_form_token(cookie: str, token: str) -> bool:
    """Return True if a token is the form token of a cookie."""
    return secrets.compare_digest(form_token(cookie).encode(), token.encode())
