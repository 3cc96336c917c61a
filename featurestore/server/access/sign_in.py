"""Signing in by a password: slow to guess, for one name and from one address alike."""

from __future__ import annotations

from datetime import timedelta

from featurestore.errors import NotSignedIn, TooManyAttempts
from featurestore.model.times import utc_now
from featurestore.registry import access, audit_log
from featurestore.registry.audit_log import Actor
from featurestore.server.access.secrets import digest, is_password, new_secret
from featurestore.session import Session

_WITHIN = timedelta(minutes=15)
_LASTS = timedelta(hours=12)
# How many failures there may be of one name from one address, from one address, and of one name.
_PAIR, _ADDRESS, _NAME = 5, 30, 100
_LONGEST = 127


def sign_in(session: Session, name: str, password: str, *, address: str) -> str:
    """Return the cookie of a browser whose user gave the password.

    Raises:
        TooManyAttempts: It failed too often of late; nothing was looked at.
        NotSignedIn: Name or password are wrong; which of them is not said.
    """
    name = name.strip().lower()[:_LONGEST]
    whose = _counted(name, address)
    _reserve(session, whose)
    with session.registry.reading() as connection:
        user = access.find_user(connection, name)
    hashed = None if user is None else user.password
    if not is_password(hashed, password) or user is None:
        raise NotSignedIn("The name or the password is wrong.")
    with session.registry.transaction() as connection:
        # Those of the address stay: whoever knows one password must not guess the next for it.
        access.remove_failures(connection, next(iter(whose)))
    return open_browser(session, user.name, "password")


def open_browser(session: Session, name: str, how: str) -> str:
    """Return the cookie of a browser in which a user has shown who it is."""
    cookie = new_secret()
    with session.registry.transaction() as connection:
        access.put_sign_in(connection, digest(cookie), name, utc_now() + _LASTS)
        audit_log.add(connection, Actor(name, "browser"), "sign in", name, {"by": how})
    return cookie


def sign_out(session: Session, cookie: str) -> None:
    """Make a cookie worthless."""
    with session.registry.transaction() as connection:
        access.remove_sign_in(connection, digest(cookie))


def _counted(name: str, address: str) -> dict[str, int]:
    """Return whose failures are counted, with how many of them there may be."""
    address = address[:45]
    return {
        f"{name} from {address}": _PAIR,
        f"from {address}": _ADDRESS,
        f"of {name}": _NAME,
    }


def _reserve(session: Session, whose: dict[str, int]) -> None:
    """Count an attempt as failed before it is looked at, so that many at once count, too."""
    since = utc_now() - _WITHIN
    with session.registry.transaction() as connection:
        for who, most in whose.items():
            if access.count_failures(connection, who, since=since) >= most:
                minutes = int(_WITHIN.total_seconds() // 60)
                raise TooManyAttempts(
                    "Signing in failed too often.", hint=f"wait {minutes} minutes"
                )
        for who in whose:
            access.put_failure(connection, who)
