"""Connections of the server: their number, and the time that a client may use.

The server accepts a bounded number of connections, which leaves descriptors for its files. At the
limit, a new connection closes the oldest idle connection of the address with the most idle
connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from featurestore.errors import ConfigurationError
from featurestore.server.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

HEADER_SECONDS = 30.0
# Connections that the event loop accepts before it handles them, and that the system queues.
_ACCEPTED_AT_ONCE, _QUEUED = 32, 1024
# Descriptors for the files of the store: half of the limit of the process, or this number.
_RESERVED = 256
_LOG_SECONDS = 60.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_UNSUPPORTED = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_log = logging.getLogger("featurestore.server")


def run_server(app: FastAPI, settings: ServerSettings) -> None:
    """Serve an application until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    connections = Connections(limit_connections(settings.connections, descriptor_limit()))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        # Only a proxy may set the client address: clients could otherwise forge the X-Forwarded-For
        # header and evade the sign-in limits.
        proxy_headers=settings.behind_proxy,
        # Row streams may take minutes; without a limit uvicorn would wait for them.
        timeout_graceful_shutdown=5,
        http=timed_protocol(read_seconds=settings.seconds, connections=connections),
        ws="none",
        # Other loops accept connections outside of Python.
        loop="asyncio",
        backlog=_ACCEPTED_AT_ONCE,
    )
    sockets = _open_sockets(settings, connections)
    # uvicorn raises the signal again after the shutdown.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=list(sockets))


def descriptor_limit() -> int:
    """Return the number of descriptors that this process may open."""
    if sys.platform == "win32":
        return 8192
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def limit_connections(requested: int, descriptors: int) -> int:
    """Return the number of connections that leaves descriptors for files.

    >>> limit_connections(512, 65_536), limit_connections(512, 256)
    (512, 128)
    """
    return max(1, min(requested, descriptors - min(_RESERVED, descriptors // 2)))


def _open_sockets(settings: ServerSettings, connections: Connections) -> list[Listener]:
    """Return a bound socket for each address of the host."""
    try:
        addresses = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return bind_supported(addresses, connections)
    except OSError as error:
        raise ConfigurationError(
            f"The server cannot listen on {settings.host}:{settings.port}: {error.strerror}.",
            hint="featurestore serve --port 0",
        ) from error


def bind_supported(
    addresses: Sequence[tuple[Any, ...]], connections: Connections
) -> list[Listener]:
    """Return a bound socket for each address, in the format of ``getaddrinfo``.

    Addresses that the machine does not have are skipped, as in asyncio: "localhost" may also be an
    IPv6 address on a machine without IPv6.

    Raises:
        OSError: An address is in use, or the machine has none of the addresses.
    """
    listeners: list[Listener] = []
    for number, address in enumerate(addresses, start=1):
        try:
            listeners.append(Listener(connections, *address))
        except OSError as error:
            is_last_choice = number == len(addresses) and not listeners
            if error.errno in _UNSUPPORTED and not is_last_choice:
                continue
            for listener in listeners:
                listener.close()
            raise
    return listeners


class _HttpConnection(Protocol):
    def has_request(self) -> bool: ...

    def is_receiving(self) -> bool: ...


class Connections:
    """The open connections of a server; all methods run in the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By descriptor, oldest first. Closed sockets are removed at the limit.
        self._sockets: dict[int, tuple[socket.socket, str]] = {}
        self._protocols: dict[int, _HttpConnection] = {}
        self._refused = 0
        self._logged = -_LOG_SECONDS

    def add(self, connection: socket.socket, address: Any) -> bool:
        """Add a connection, and close another one at the limit; return False if none is idle."""
        if len(self._sockets) >= self._limit:
            self._sockets = {
                descriptor: entry
                for descriptor, entry in self._sockets.items()
                if entry[0].fileno() == descriptor
            }
        is_added = len(self._sockets) < self._limit or self._close_idle()
        if is_added:
            # A number is reused after its connection was closed.
            self._sockets.pop(connection.fileno(), None)
            self._sockets[connection.fileno()] = (connection, str(address[0]))
        return is_added

    def begin(self, descriptor: int, protocol: _HttpConnection) -> None:
        """Register the protocol of a connection."""
        self._protocols[descriptor] = protocol

    def end(self, descriptor: int, protocol: _HttpConnection) -> None:
        """Remove the protocol of a closed connection."""
        if self._protocols.get(descriptor) is protocol:
            del self._protocols[descriptor]

    def _close_idle(self) -> bool:
        """Close the oldest idle connection of the address with the most idle connections."""
        self.log_refusal()
        # Without a protocol, the TLS handshake is not complete.
        idle = self._matching(lambda protocol: protocol is None or not protocol.has_request())
        # A client can delay its body for as long as the time limit.
        idle = idle or self._matching(lambda protocol: protocol is None or protocol.is_receiving())
        if not idle:
            return False
        ((crowded, _),) = Counter(address for _, address in idle).most_common(1)
        descriptor = next(number for number, address in idle if address == crowded)
        connection, _ = self._sockets.pop(descriptor)
        # The event loop reads the end of the stream, and closes the connection. The client may be
        # faster.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def _matching(self, is_idle: Callable[[_HttpConnection | None], bool]) -> list[tuple[int, str]]:
        """Return the descriptors and addresses of idle connections, oldest first."""
        return [
            (descriptor, address)
            for descriptor, (_, address) in self._sockets.items()
            if is_idle(self._protocols.get(descriptor))
        ]

    def log_refusal(self) -> None:
        """Count a refused connection, and log the number at most once per interval."""
        self._refused += 1
        if time.monotonic() - self._logged < _LOG_SECONDS:
            return
        _log.warning(
            "the limit of %d open connections is reached (--connections, ulimit -n); "
            "closed or refused since the last message: %d",
            self._limit,
            self._refused,
        )
        self._logged, self._refused = time.monotonic(), 0


class Listener(socket.socket):
    """A bound socket that limits the number of connections."""

    def __init__(
        self,
        connections: Connections,
        family: int,
        socket_type: int,
        protocol: int,
        _: str,
        address: Any,
    ) -> None:
        super().__init__(family, socket_type, protocol)
        self._connections = connections
        # Closed to accept and refuse a connection if the process has no other descriptors.
        self._spare = socket.socket()
        try:
            if os.name == "posix":
                self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            if family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            self.bind(address)
        except OSError:
            self.close()
            raise

    def listen(self, backlog: int = 0, /) -> None:
        """Let the system queue more connections than the event loop accepts at once."""
        super().listen(_QUEUED)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            BlockingIOError: No connection is waiting, or it was refused.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
            self._refuse_with_spare()
            raise BlockingIOError(errno.EAGAIN, "no descriptors") from error
        if self._connections.add(connection, address):
            return connection, address
        connection.close()
        raise BlockingIOError(errno.EAGAIN, "too many connections")

    def _refuse_with_spare(self) -> None:
        """Refuse a connection, which would otherwise wake the event loop again and again."""
        self._connections.log_refusal()
        self._spare.close()
        with suppress(OSError):
            connection, _ = super().accept()
            connection.close()
        self._spare = socket.socket()

    def close(self) -> None:
        """Close the socket and the spare descriptor."""
        self._spare.close()
        super().close()


def timed_protocol(
    *,
    read_seconds: float,
    header_seconds: float = HEADER_SECONDS,
    connections: Connections | None = None,
) -> type[Any]:
    """Return a uvicorn protocol class that aborts slow connections.

    Args:
        read_seconds: The time that a client may stop reading once its buffers are full.
        header_seconds: The time for receiving a request header, and for the first request to start.
        connections: The connections of the server.
    """
    # The base class is the httptools or the h11 protocol, depending on the installed libraries.
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limits = {
        "read_seconds": read_seconds,
        "header_seconds": header_seconds,
        "open_connections": connections or Connections(sys.maxsize),
    }
    return type("TimedProtocol", (_TimedConnection, AutoHTTPProtocol), limits)


class _TimedConnection:
    """Mixin that adds timers to a uvicorn protocol; all methods run in the event loop.

    uvicorn limits the idle time between requests, but neither the time to receive a request nor the
    time to send a response.
    """

    read_seconds: float
    header_seconds: float
    open_connections: Connections
    _descriptor: int = -1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        protocol: Any = self
        self._header_timer = _Timer(protocol.loop, self.header_seconds, self._abort_idle)
        self._read_timer = _Timer(protocol.loop, self.read_seconds, self._abort)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._header_timer.start()
        self._descriptor = transport.get_extra_info("socket").fileno()
        self.open_connections.begin(self._descriptor, self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        # uvicorn creates a cycle when a header is complete; until then the timer continues.
        if self.has_request():
            self._header_timer.stop()
        else:
            self._header_timer.start()

    def pause_writing(self) -> None:
        # The event loop calls this when the send buffer is full, because the client reads too
        # slowly.
        super().pause_writing()  # type: ignore[misc]
        self._read_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._read_timer.stop()

    def connection_lost(self, error: Exception | None) -> None:
        self._header_timer.stop()
        self._read_timer.stop()
        self.open_connections.end(self._descriptor, self)
        super().connection_lost(error)  # type: ignore[misc]

    def has_request(self) -> bool:
        """Return True if a request is being processed."""
        cycle: Any = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def is_receiving(self) -> bool:
        """Return True if the body of a request is incomplete."""
        cycle: Any = getattr(self, "cycle", None)
        return self.has_request() and bool(cycle.more_body)

    def _abort_idle(self) -> None:
        if not self.has_request():
            self._abort()

    def _abort(self) -> None:
        # close() waits until the client has read all buffered bytes, which may never happen.
        protocol: Any = self
        protocol.transport.abort()


class _Timer:
    """A timer that calls a function after some seconds unless it is stopped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> None:
        self._loop, self._seconds, self._callback = loop, seconds, callback
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer if it is not running."""
        # A running timer is not restarted, so a client cannot extend it by sending single bytes.
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._run_callback)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run_callback(self) -> None:
        self._handle = None
        self._callback()
