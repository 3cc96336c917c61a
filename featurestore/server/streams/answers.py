"""Answers as Arrow IPC streams: a batch at a time, and none after the client has gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress

import pyarrow as pa
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from featurestore.arrow.arrow_stream import ipc_chunks
from featurestore.errors import FeatureStoreError, QueryEnded
from featurestore.model.time_limits import time_limit
from featurestore.retrieval import FeatureFrame
from featurestore.server.records.retrievals import Retrieval

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNTED = "rows"
_MOMENT = 0.1
_log = logging.getLogger("featurestore.server")


def parts_of(frame: FeatureFrame, asked: Retrieval) -> Generator[bytes, None, None]:
    """Yield the bytes of an Arrow stream, the schema first, each when it is asked for."""
    if asked.answer == "count":
        counted = pa.table({COUNTED: pa.array([frame.count()], pa.int64())})
        yield from ipc_chunks(counted.schema, counted.to_batches())
    elif asked.answer == "schema":
        yield from ipc_chunks(frame.schema, ())
    else:
        yield from ipc_chunks(frame.schema, _batches(frame, asked))


def _batches(frame: FeatureFrame, asked: Retrieval) -> Iterator[pa.RecordBatch]:
    if asked.limit is not None:
        yield from frame.head(asked.limit).to_batches()
    else:
        yield from frame.to_batches(rows=asked.batch_rows)


class ClientGone(Exception):
    """Whoever asked reads no more of an answer, be it that a look at the first rows was enough."""


class Answer:
    """The parts of an answer, made in threads, as long as somebody waits for them."""

    def __init__(
        self,
        parts: Generator[bytes, None, None],
        *,
        interrupt: Callable[[int], None],
        is_gone: Callable[[], Awaitable[bool]],
        seconds: float,
        done: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._interrupt = interrupt
        self._is_gone = is_gone
        self._seconds = seconds
        self._done = done
        self._thread: int | None = None
        # No query is ended by a thread that has gone on to another one meanwhile.
        self._lock = threading.Lock()
        self._first: bytes | None = None

    @property
    def seconds(self) -> float:
        """How long one part may take, to be made or to be taken."""
        return self._seconds

    async def begin(self) -> None:
        """Make the first part, so that what is wrong is an answer of its own.

        Raises:
            FeatureStoreError: What was asked cannot be.
        """
        try:
            self._first = await self._next()
        except BaseException:
            await self.end()
            raise

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the parts; ``end`` has to be called after the last one that is wanted.

        Raises:
            QueryEnded: A part took too long.
            ClientGone: Nobody reads them any more.
        """
        part = self._first
        while part is not None:
            yield part
            if await self._is_gone():
                raise ClientGone
            part = await self._next()

    async def end(self) -> None:
        """End what computes the parts, and remove what it was made of."""
        await asyncio.shield(asyncio.to_thread(self._close))

    async def _next(self) -> bytes | None:
        """Return the next part.

        Raises:
            QueryEnded: It took too long, or the client went away meanwhile.
        """
        making = asyncio.ensure_future(asyncio.to_thread(self._make))
        until = time.monotonic() + self._seconds
        try:
            while not making.done():
                await asyncio.wait([making], timeout=_MOMENT)
                if not making.done() and (time.monotonic() > until or await self._is_gone()):
                    self._end_query()
        finally:
            # Whoever waits is told to stop, as when the server ends: the thread leaves first.
            while not making.done():
                self._end_query()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([making], timeout=_MOMENT)
        return making.result()

    def _end_query(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._interrupt(self._thread)

    def _make(self) -> bytes | None:
        self._thread = threading.get_ident()
        try:
            with time_limit(self._seconds):
                return next(self._parts, None)
        except KeyboardInterrupt:  # what an engine makes of the end of a query
            raise QueryEnded(
                f"The query was ended: it took more than {self._seconds:g} seconds.",
                hint="ask for less, or let the server wait longer",
            ) from None
        finally:
            with self._lock:
                self._thread = None

    def _close(self) -> None:
        with suppress(FeatureStoreError):
            self._parts.close()
        self._done()


class Stream(StreamingResponse):
    """The response of an answer; a client that takes no part of it for too long is left."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.stream(), media_type=MEDIA_TYPE)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._answer.seconds)

        try:
            await self.stream_response(send_in_time)
        except ClientGone:
            _log.info("a client went before it had read its answer to the end")
        except (QueryEnded, TimeoutError) as error:
            # What is cut short lacks its end, which the client misses.
            _log.warning("rows were not sent to their end: %s", error or "nobody took them")
        finally:
            await self._answer.end()
