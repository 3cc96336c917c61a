"""Connections of clients that send or read too slowly: they are ended.

uvicorn limits how long a connection is idle between requests, and not how long a request takes to
arrive or an answer takes to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

HEADER_SECONDS = 30.0


def protocol_of(*, read_seconds: float, header_seconds: float = HEADER_SECONDS) -> type[Any]:
    """Return the protocol of uvicorn for connections that are ended when they are too slow.

    Args:
        read_seconds: How long a client may leave an answer unread once its buffers are full.
        header_seconds: How long the header of a request may take, and the first one may be absent.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limits = {"read_seconds": read_seconds, "header_seconds": header_seconds}
    return type("TimedProtocol", (_Timed, AutoHTTPProtocol), limits)


class _Timed:
    """Timers for a protocol of uvicorn; all methods are called in the event loop."""

    read_seconds: float
    header_seconds: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        protocol: Any = self
        self._header_timer = _Timer(protocol.loop, self.header_seconds, self._end_idle)
        self._read_timer = _Timer(protocol.loop, self.read_seconds, self._abort)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._header_timer.start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        if self._has_request():
            self._header_timer.stop()
        else:
            self._header_timer.start()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._read_timer.start()

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._read_timer.stop()

    def connection_lost(self, error: Exception | None) -> None:
        self._header_timer.stop()
        self._read_timer.stop()
        super().connection_lost(error)  # type: ignore[misc]

    def _has_request(self) -> bool:
        cycle: Any = getattr(self, "cycle", None)
        return cycle is not None and not cycle.response_complete

    def _end_idle(self) -> None:
        if not self._has_request():
            self._abort()

    def _abort(self) -> None:
        # close() would wait until a client that reads nothing has read the rest.
        protocol: Any = self
        protocol.transport.abort()


class _Timer:
    """Calls a function after some seconds, unless it is stopped before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]
    ) -> None:
        self._loop, self._seconds, self._call = loop, seconds, call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, unless it runs already."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._end)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._call()
