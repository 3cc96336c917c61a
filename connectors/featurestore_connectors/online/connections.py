"""Connections of online stores: addresses, pools for threads and forks, and asynchronous reads."""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.threads import translate_thread_errors
from featurestore.plugins.online import OnlineConfig

# The limit of concurrent asynchronous reads. More threads only contend for the interpreter lock.
_READER_THREADS = 32
_TIMEOUT = "timeout"
_DEFAULT_TIMEOUT = "5"
_PLAIN = re.compile(r"[\w .,:=+()-]*")


class Connection(Protocol):
    """A driver connection."""

    def close(self) -> None:
        """Close the connection."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class ConnectionPool(Generic[ConnectionT]):
    """Idle connections of one process, of which each call borrows one."""

    def __init__(self, connect: Callable[[], ConnectionT]) -> None:
        self._connect = connect
        self._inherited: list[list[ConnectionT]] = []
        self._start()

    def _start(self) -> None:
        """Start without connections in this process."""
        self._idle: list[ConnectionT] = []
        self._process = os.getpid()
        # If a store is not closed, its connections must not be left to garbage collection.
        weakref.finalize(self, _close_idle, self._idle, self._process)

    @contextmanager
    def borrow(self) -> Iterator[ConnectionT]:
        """Lend a connection; it is closed instead of returned if the block raises an error."""
        self.discard_inherited()
        # Operations of lists are atomic, so that the pool needs no lock.
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def discard_inherited(self) -> None:
        """Start without connections in a process that was forked."""
        if self._process != os.getpid():
            # A fork shares the sockets and file locks of its parent, so that even closing its
            # connections would break those of the parent. They stay referenced, unused.
            self._inherited.append(self._idle)
            self._start()

    @property
    def has_idle(self) -> bool:
        """Whether the next call borrows an idle connection, which the server may have closed."""
        return self._process == os.getpid() and bool(self._idle)

    def close_idle(self) -> None:
        """Close all idle connections."""
        _close_idle(self._idle, self._process)


def _close_idle(connections: list[ConnectionT], process: int) -> None:
    """Close the idle connections of a process; those of another process belong to it."""
    while connections and process == os.getpid():
        # Another thread may borrow the last one first.
        with suppress(IndexError):
            connections.pop().close()


class ThreadedReads:
    """Asynchronous reads of a blocking store, in threads.

    A thread costs about 100 us per read. Concurrent reads are as fast as with the asynchronous
    clients of the drivers, whose connections belong to one event loop.
    """

    def __init__(self, read: Callable[[Sequence[bytes]], list[bytes | None]]) -> None:
        self._read = read
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    async def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read in a thread; a canceled read ends in the background."""
        if self._threads is None or self._process != os.getpid():
            # The threads of the parent do not exist in a forked process.
            self._threads = ThreadPoolExecutor(_READER_THREADS, "featurestore-online")
            self._process = os.getpid()
        with translate_thread_errors():
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, keys)
        return await reading

    def close(self) -> None:
        """End the threads after their reads."""
        if self._threads is not None and self._process == os.getpid():
            self._threads.shutdown(wait=False)
        self._threads = None


def end_of_prefix(prefix: bytes) -> bytes | None:
    r"""Return the first key after all keys with a prefix, or None if all bytes are the greatest.

    >>> end_of_prefix(b"ab"), end_of_prefix(b"a\xff"), end_of_prefix(b"\xff")
    (b'ac', b'b', None)
    """
    shortened = prefix.rstrip(b"\xff")
    if not shortened:
        return None
    return shortened[:-1] + bytes([shortened[-1] + 1])


@dataclass(frozen=True)
class ServerAddress:
    """The server, user and database in the URI of an online store."""

    host: str
    port: int
    user: str | None
    database: str
    options: Mapping[str, str]
    timeout: float

    @classmethod
    def parse(
        cls, config: OnlineConfig, *, default_port: int, allowed: Sequence[str] = ()
    ) -> ServerAddress:
        """Parse a URI, whose options are ``timeout`` in seconds and the ``allowed`` ones.

        Raises:
            InvalidArgument: The URI has no host, or an option that is not allowed.
        """
        url = urlsplit(config.uri)
        options = dict(parse_qsl(url.query, keep_blank_values=True))
        timeout = options.pop(_TIMEOUT, _DEFAULT_TIMEOUT)
        for name, value in options.items():
            # Other options of drivers read local files or load libraries.
            if name not in allowed or not _PLAIN.fullmatch(value):
                raise InvalidArgument(
                    f"Online store {config.name!r}: the URI option {name!r} is not allowed, or has "
                    f"an unsafe value. Allowed: {listing([_TIMEOUT, *allowed])}.",
                    hint=did_you_mean(name, [_TIMEOUT, *allowed], write="?{}=..."),
                )
        try:
            port = url.port or default_port
            seconds = float(timeout)
        except ValueError:
            port, seconds = 0, 0.0
        if not url.hostname or port <= 0 or not 0 < seconds < float("inf"):
            raise InvalidArgument(
                f"Online store {config.name!r}: the URI needs a host, a valid port, and a timeout "
                "in seconds.",
                hint=f"{url.scheme}://localhost:{default_port}/0?timeout=0.5",
            )
        user = None if url.username is None else unquote(url.username)
        return cls(url.hostname, port, user, unquote(url.path[1:]), options, seconds)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
