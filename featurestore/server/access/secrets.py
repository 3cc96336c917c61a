"""Passwords by argon2, and random texts of which only the SHA-256 is kept."""

from __future__ import annotations

import hashlib
import secrets
from functools import cache
from typing import TYPE_CHECKING

from featurestore.errors import InvalidArgument, missing_extra

if TYPE_CHECKING:
    from argon2 import PasswordHasher

TOKEN_PREFIX = "fs_"
_SHORTEST, _LONGEST = 10, 1000


def hash_password(password: str) -> str:
    """Return the argon2 hash of a password.

    Raises:
        InvalidArgument: It is too short to be one, or too long to be hashed for everybody.
    """
    if not _SHORTEST <= len(password) <= _LONGEST:
        raise InvalidArgument(
            f"A password has {_SHORTEST} to {_LONGEST} characters; this one has {len(password)}.",
            hint="a sentence is easy to keep in mind",
        )
    return _hasher().hash(password)


def is_password(hashed: str | None, password: str) -> bool:
    """Tell whether a password has a hash; it takes as long where there is none."""
    from argon2.exceptions import InvalidHashError, VerificationError

    if len(password) > _LONGEST:
        return False
    try:
        return _hasher().verify(hashed or _nobodys(), password) and hashed is not None
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
def _nobodys() -> str:
    return _hasher().hash(secrets.token_urlsafe(32))


def new_secret() -> str:
    """Return a text that nobody guesses: 256 random bits."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the hash by which a random text is known.

    >>> digest("x")[:8]
    '2d711642'
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def form_token(cookie: str) -> str:
    """Return what a form of the browser with a cookie holds: no other site can make it."""
    return digest(f"form of {cookie}")


def is_form_token(cookie: str, given: str) -> bool:
    """Tell whether a form comes from the browser with a cookie."""
    return secrets.compare_digest(form_token(cookie).encode(), given.encode())
