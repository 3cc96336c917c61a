"""Password sign-in: failed attempts, counted by account and by address, delay the next attempt."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from sqlalchemy.engine import Connection

from featurestore.errors import NotSignedIn, TooManyAttempts
from featurestore.model.threads import independent_tasks
from featurestore.model.times import utc_now
from featurestore.registry import access, audit_log
from featurestore.registry.access import User
from featurestore.registry.audit_log import Actor
from featurestore.registry.rows import lock
from featurestore.server.access.visitors import (
    CONCURRENT_HASHES,
    hash_secret,
    new_secret,
    verify_password,
)
from featurestore.server.turns import Turns
from featurestore.session import Session

_COOKIE_LIFETIME = timedelta(hours=12)
# Failures are no longer counted after this time.
_FAILURE_WINDOW = timedelta(hours=1)
# Allowed failures per account and address, per address, and per account.
_PAIR_LIMIT, _ADDRESS_LIMIT, _ACCOUNT_LIMIT = 5, 30, 100
# The delay after the last allowed failure; each further failure doubles it.
_FIRST_WAIT, _LONGEST_WAIT = timedelta(seconds=30), timedelta(minutes=15)
_MAX_NAME_LENGTH = 127
_CLOCK_SKEW = timedelta(minutes=1)
# The seconds that an attempt waits for previous attempts from the same address.
_TURN_SECONDS = 10.0
# Addresses share a fixed number of locks, since one lock per address would grow without limit.
_TURNS = [threading.Lock() for _ in range(64)]


def sign_in(session: Session, name: str, password: str, *, address: str) -> str:
    """Check a password and return the cookie of a new browser session.

    Only failures are counted. An attempt is recorded as failed before the password is checked, so
    that parallel attempts are counted; after a success the record is removed.

    Raises:
        TooManyAttempts: Too many attempts failed; the password was not checked.
        NotSignedIn: The name or the password is invalid; the error does not reveal which.
    """
    user = check_password(session, name, password, address=address)
    return start_browser_session(session, user.name, "password")


def check_password(session: Session, name: str, password: str, *, address: str) -> User:
    """Return the user with a name and a password; raise like ``sign_in``."""
    name = name.strip().lower()[:_MAX_NAME_LENGTH]
    attempt_key = _attempt_key(name, address)
    with _serialize_attempts(address):
        attempt_id = _record_attempt(session, attempt_key)
        # The transaction ends before the password is verified, since argon2 is slow by design.
        with session.registry.reading() as connection:
            user = access.find_user(connection, name)
        hashed = None if user is None else user.password
        # Unknown users are verified too, so the response time does not reveal whether a name
        # exists.
        if not verify_password(hashed, password) or user is None:
            raise NotSignedIn("Invalid user name or password.")
        with session.registry.transaction() as connection:
            access.remove_attempt(connection, attempt_id)
            # Failures of other accounts at the address are not removed: one known password must not
            # reset the count of guesses for others.
            access.remove_attempts(connection, attempt_key)
    return user


def start_browser_session(session: Session, name: str, method: str) -> str:
    """Start a browser session for an authenticated user and return its cookie."""
    cookie = new_secret()
    with session.registry.transaction() as connection:
        access.put_sign_in(connection, hash_secret(cookie), name, utc_now() + _COOKIE_LIFETIME)
        audit_log.add(connection, Actor(name, "browser"), "sign in", name, {"by": method})
    return cookie


def sign_out(session: Session, cookie: str) -> None:
    """End the browser session that a cookie identifies."""
    with session.registry.transaction() as connection:
        access.remove_sign_in(connection, hash_secret(cookie))


def delay_after(failure_count: int, allowed: int) -> timedelta:
    """Return the delay before the next attempt after a number of failures.

    >>> [int(delay_after(count, 5).total_seconds()) for count in (4, 5, 6, 7, 10, 10_000)]
    [0, 30, 60, 120, 900, 900]
    """
    if failure_count < allowed:
        return timedelta(0)
    # A large exponent would overflow the timedelta.
    doublings = min(failure_count - allowed, 16)
    return min(_FIRST_WAIT * 2**doublings, _LONGEST_WAIT)


def network_of(address: str) -> str:
    """Return the network that one customer usually has: the address, or its IPv6 /64 network.

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


def _attempt_key(name: str, address: str) -> str:
    """Return the key for counting attempts on an account from an address.

    Names and addresses are hashed, because users may type passwords into the name field, and
    characters in names must not act as wildcards in a search.
    """
    return f"{_short_hash(name)} {_short_hash(network_of(address))}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:40]


@contextmanager
def _serialize_attempts(address: str) -> Iterator[None]:
    """Serialize attempts from one address, so that successful attempts do not count as failures."""
    turn_lock = _TURNS[int(_short_hash(network_of(address)), 16) % len(_TURNS)]
    # Waiting attempts occupy threads of the server, so they give up after some seconds.
    if not turn_lock.acquire(timeout=_TURN_SECONDS):
        raise _too_many_attempts_error(timedelta(seconds=_TURN_SECONDS))
    try:
        yield
    finally:
        turn_lock.release()


def _record_attempt(session: Session, attempt_key: str) -> int:
    """Record an attempt as failed and return its id; raise TooManyAttempts during a delay."""
    with session.registry.transaction() as connection:
        # Without the lock, parallel attempts would read the count before any attempt is recorded.
        lock(connection, "sign in")
        wait = _remaining_wait(connection, attempt_key)
        if wait > timedelta(0):
            raise _too_many_attempts_error(wait)
        return access.put_attempt(connection, attempt_key)


def _remaining_wait(connection: Connection, attempt_key: str) -> timedelta:
    """Return the remaining delay for an account at an address.

    One account at one address adds at most ``_PAIR_LIMIT`` failures to the counts for the address
    and for the account elsewhere, so users who lock themselves out do not lock out others.
    """
    now = utc_now()
    account, network = attempt_key.split(" ")
    longest = timedelta(0)
    # Attempts in the future were recorded before the clock was set back and would extend the delay.
    access.remove_attempts_outside(connection, now - _FAILURE_WINDOW, now + _CLOCK_SKEW)
    for pattern, allowed in (
        (attempt_key, _PAIR_LIMIT),
        (f"% {network}", _ADDRESS_LIMIT),
        (f"{account} %", _ACCOUNT_LIMIT),
    ):
        matching = access.count_attempts(connection, pattern)
        if not matching:
            continue
        numbers = [number for number, _ in matching.values()]
        if allowed == _PAIR_LIMIT:
            failures = sum(numbers)
        else:
            failures = sum(min(number, _PAIR_LIMIT) for number in numbers)
        last = max(timestamp for _, timestamp in matching.values())
        longest = max(longest, last + delay_after(failures, allowed) - now)
    return longest


def _too_many_attempts_error(wait: timedelta) -> TooManyAttempts:
    seconds = math.ceil(wait.total_seconds())
    return TooManyAttempts(
        "Too many failed sign-in attempts.", hint=f"wait {seconds} seconds", seconds=seconds
    )


T = TypeVar("T")
# The attempts of one network that wait, and the seconds that they wait.
_WAITING, _SECONDS = 16, 10.0


class PasswordThreads:
    """Runs functions that hash passwords. One attempt of each network runs at a time."""

    def __init__(self) -> None:
        self._turns = Turns(
            running=CONCURRENT_HASHES, per_person=1, waiting=_WAITING, seconds=_SECONDS
        )
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, address: str, function: Callable[[], T]) -> T:
        """Return the result of a function for a client.

        Raises:
            TooManyRequests: Too many attempts from this network wait.
        """
        network = network_of(address)
        await self._turns.take(network)
        try:
            if self._threads is None:
                self._threads = independent_tasks(CONCURRENT_HASHES, "featurestore-passwords")
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        finally:
            self._turns.end(network)
