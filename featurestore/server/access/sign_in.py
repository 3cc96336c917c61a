"""Signing in by a password: failures of an account and of an address delay the next attempt."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.errors import NotSignedIn, TooManyAttempts
from featurestore.model.times import utc_now
from featurestore.registry import access, audit_log
from featurestore.registry.audit_log import Actor
from featurestore.registry.locking import lock
from featurestore.server.access.secrets import digest, is_password, new_secret
from featurestore.session import Session

_LASTS = timedelta(hours=12)
# Failures are forgotten after this time.
_WITHIN = timedelta(hours=1)
# The allowed failures of one account from one address, from one address, and of one account.
_PAIR, _ADDRESS, _ACCOUNT = 5, 30, 100
# The wait after the last allowed failure; each further failure doubles it.
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=30), timedelta(minutes=15)
_LONGEST_NAME = 127
_SKEW = timedelta(minutes=1)
# Seconds for which an attempt waits for the attempts before it from its address.
_TURN_SECONDS = 10.0
_TURNS = [threading.Lock() for _ in range(64)]


def sign_in(session: Session, name: str, password: str, *, address: str) -> str:
    """Return the cookie of a browser whose user gave the password.

    Only failures count. An attempt is recorded as failed before the password is checked, so that
    attempts in parallel count, and the record of a success is removed.

    Raises:
        TooManyAttempts: Too many attempts failed; the password was not checked.
        NotSignedIn: The name or the password is wrong; the error does not say which.
    """
    name = name.strip().lower()[:_LONGEST_NAME]
    who = _who(name, address)
    with _turn(address):
        attempt = _reserve(session, who)
        with session.registry.reading() as connection:
            user = access.find_user(connection, name)
        hashed = None if user is None else user.password
        if not is_password(hashed, password) or user is None:
            raise NotSignedIn("The name or the password is wrong.")
        with session.registry.transaction() as connection:
            access.remove_attempt(connection, attempt)
            # Failures of other accounts from the address remain: one known password must not
            # reset the count of guesses for others.
            access.remove_attempts(connection, who)
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


def wait_after(failures: int, allowed: int) -> timedelta:
    """Return how long the next attempt waits after the last of some failures.

    >>> [int(wait_after(count, 5).total_seconds()) for count in (4, 5, 6, 7, 10, 10_000)]
    [0, 30, 60, 120, 900, 900]
    """
    if failures < allowed:
        return timedelta(0)
    doublings = min(failures - allowed, 16)
    return min(_FIRST_WAIT * 2**doublings, _LONGEST_WAIT)


def network_of(address: str) -> str:
    """Return the part of an address that one customer of a provider has: of IPv6 the first 64 bits.

    >>> network_of("192.0.2.7"), network_of("2001:db8::1:2"), network_of("testclient")
    ('192.0.2.7', '2001:db8::/64', 'testclient')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:45]
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _who(name: str, address: str) -> str:
    """Return the key under which attempts of an account from an address are counted.

    Names and addresses are hashed: people type passwords into the field of the name, and no
    character of a name can be a wildcard of a search.
    """
    return f"{_short_hash(name)} {_short_hash(network_of(address))}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:40]


@contextmanager
def _turn(address: str) -> Iterator[None]:
    """Let attempts from one address follow one another, so that those that succeed never count."""
    turn = _TURNS[int(_short_hash(network_of(address)), 16) % len(_TURNS)]
    if not turn.acquire(timeout=_TURN_SECONDS):
        raise _too_many(timedelta(seconds=_TURN_SECONDS))
    try:
        yield
    finally:
        turn.release()


def _reserve(session: Session, who: str) -> int:
    """Record an attempt as failed and return its id, where no wait is due."""
    with session.registry.transaction() as connection:
        lock(connection, "sign in")
        wait = _remaining_wait(connection, who)
        if wait > timedelta(0):
            raise _too_many(wait)
        return access.put_attempt(connection, who)


def _remaining_wait(connection: Connection, who: str) -> timedelta:
    """Return how long an account waits at an address.

    One account at one address adds at most ``_PAIR`` failures to the counts of its address and of
    its account elsewhere: who locks themselves out does not lock out others.
    """
    now = utc_now()
    account, network = who.split(" ")
    longest = timedelta(0)
    access.remove_attempts_outside(connection, now - _WITHIN, now + _SKEW)
    for pattern, allowed in ((who, _PAIR), (f"% {network}", _ADDRESS), (f"{account} %", _ACCOUNT)):
        matching = access.attempts(connection, pattern)
        if not matching:
            continue
        numbers = [number for number, _ in matching.values()]
        if allowed == _PAIR:
            failures = sum(numbers)
        else:
            failures = sum(min(number, _PAIR) for number in numbers)
        last = max(at for _, at in matching.values())
        longest = max(longest, last + wait_after(failures, allowed) - now)
    return longest


def _too_many(wait: timedelta) -> TooManyAttempts:
    seconds = math.ceil(wait.total_seconds())
    return TooManyAttempts("Signing in failed too often.", hint=f"wait {seconds} seconds")
