"""Rows as Arrow IPC streams that are computed batch by batch and stop with the client."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from featurestore.arrow.batches import ipc_chunks
from featurestore.errors import FeatureStoreError, InvalidArgument, QueryEnded
from featurestore.model.runtime import time_limit
from featurestore.plugins.remote import RETRIEVAL
from featurestore.retrieval import FeatureFrame
from featurestore.server.guard import Settings, Store
from featurestore.server.rest import REFUSALS
from featurestore.server.retrievals import Retrieval, build_frame, check_conditions
from featurestore.server.uploads import Upload, receive_upload

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNT_COLUMN = "rows"
_POLL_SECONDS = 0.1
_log = logging.getLogger("featurestore.server")
api = APIRouter(tags=["rows"], responses=REFUSALS)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A line of JSON with the request, then rows as an Arrow stream.",
        "content": {RETRIEVAL: {"schema": {"type": "string"}}},
    }
}


def stream_chunks(frame: FeatureFrame, retrieval: Retrieval) -> Generator[bytes, None, None]:
    """Yield the Arrow stream of a frame lazily, schema first."""
    if retrieval.answer == "count":
        row_count = pa.table({COUNT_COLUMN: pa.array([frame.count()], pa.int64())})
        yield from ipc_chunks(row_count.schema, row_count.to_batches())
    elif retrieval.answer == "schema":
        yield from ipc_chunks(frame.schema, ())
    else:
        yield from ipc_chunks(frame.schema, _batches(frame, retrieval))


def _batches(frame: FeatureFrame, retrieval: Retrieval) -> Iterator[pa.RecordBatch]:
    if retrieval.limit is not None:
        yield from frame.head(retrieval.limit).to_batches()
    else:
        yield from frame.to_batches(rows=retrieval.batch_rows)


class ClientDisconnected(Exception):
    """The client closed the connection before the end of the response."""


class ChunkProducer:
    """Computes the chunks of a response in threads while the client is connected."""

    def __init__(
        self,
        chunks: Generator[bytes, None, None],
        *,
        interrupt: Callable[[int], None],
        is_disconnected: Callable[[], Awaitable[bool]],
        seconds: float,
        cleanup: Callable[[], None],
    ) -> None:
        self._chunks = chunks
        self._interrupt = interrupt
        self._is_disconnected = is_disconnected
        self._seconds = seconds
        self._cleanup = cleanup
        self._thread: int | None = None
        # Guards _thread: a worker thread that already runs another request must not be interrupted.
        self._lock = threading.Lock()
        self._first: bytes | None = None

    @property
    def seconds(self) -> float:
        """Time limit of one chunk, both to compute and to send it."""
        return self._seconds

    async def begin(self) -> None:
        """Compute the first chunk, so that errors become an error response.

        Raises:
            FeatureStoreError: The retrieval failed.
        """
        try:
            self._first = await self._next_chunk()
        except BaseException:
            await self.end()
            raise

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks; the caller has to call ``end`` afterwards.

        Raises:
            QueryEnded: A chunk took too long.
            ClientDisconnected: The client closed the connection.
        """
        chunk = self._first
        while chunk is not None:
            yield chunk
            if await self._is_disconnected():
                raise ClientDisconnected
            chunk = await self._next_chunk()

    async def end(self) -> None:
        """Close the generator and release its inputs."""
        await asyncio.shield(asyncio.to_thread(self._close))

    async def _next_chunk(self) -> bytes | None:
        """Return the next chunk.

        Raises:
            QueryEnded: It took too long, or the client disconnected.
        """
        computation = asyncio.ensure_future(asyncio.to_thread(self._compute_chunk))
        deadline = time.monotonic() + self._seconds
        try:
            while not computation.done():
                await asyncio.wait([computation], timeout=_POLL_SECONDS)
                if not computation.done() and (
                    time.monotonic() > deadline or await self._is_disconnected()
                ):
                    self._interrupt_query()
        finally:
            # On cancellation, as at shutdown, wait until the worker thread has stopped.
            while not computation.done():
                self._interrupt_query()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([computation], timeout=_POLL_SECONDS)
        return computation.result()

    def _interrupt_query(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._interrupt(self._thread)

    def _compute_chunk(self) -> bytes | None:
        self._thread = threading.get_ident()
        try:
            with time_limit(self._seconds):
                return next(self._chunks, None)
        except KeyboardInterrupt:  # engines raise it for an interrupted query
            raise QueryEnded(
                f"The query was ended: it took more than {self._seconds:g} seconds.",
                hint="request fewer rows, or increase the time limit of the server",
            ) from None
        finally:
            with self._lock:
                self._thread = None

    def _close(self) -> None:
        with suppress(FeatureStoreError):
            self._chunks.close()
        self._cleanup()


class ArrowResponse(StreamingResponse):
    """Streaming response of a ChunkProducer; a client that stops reading is disconnected."""

    def __init__(self, chunks: ChunkProducer) -> None:
        super().__init__(chunks.stream(), media_type=MEDIA_TYPE)
        self._producer = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._producer.seconds)

        try:
            await self.stream_response(send_in_time)
        except ClientDisconnected:
            _log.info("a client disconnected before the end of its response")
        except (QueryEnded, TimeoutError) as error:
            # The missing end of the stream shows the client that rows are missing.
            _log.warning("a row stream was aborted: %s", error or "the client stopped reading")
        finally:
            await self._producer.end()


async def received_upload(request: Request, settings: Settings) -> Upload:
    """Receive the complete upload of a request."""
    return await receive_upload(request.stream(), max_bytes=settings.upload)


@api.post("/rows", openapi_extra=BODY, response_class=StreamingResponse)
async def stream_rows(
    request: Request,
    store: Store,
    settings: Settings,
    upload: Annotated[Upload, Depends(received_upload)],
) -> ArrowResponse:
    """Return rows as an Arrow IPC stream; the query stops when the client disconnects."""
    try:
        retrieval = upload.parse_line(Retrieval)
        check_conditions(retrieval, max_characters=settings.condition)
    except InvalidArgument:
        await asyncio.to_thread(upload.remove)
        raise

    def chunks() -> Generator[bytes, None, None]:
        yield from stream_chunks(build_frame(store, retrieval, upload.table()), retrieval)

    producer = ChunkProducer(
        chunks(),
        interrupt=store.session.engine.interrupt,
        is_disconnected=request.is_disconnected,
        seconds=settings.seconds,
        cleanup=upload.remove,
    )
    await producer.begin()
    return ArrowResponse(producer)
