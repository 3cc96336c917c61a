"""Rows as Arrow IPC streams, which are computed in batches and stop if the client disconnects."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import pyarrow as pa
from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Message, Receive, Scope, Send

from featurestore.arrow.batches import ipc_chunks
from featurestore.errors import FeatureStoreError, InvalidArgument, LimitExceeded, QueryEnded
from featurestore.model.arguments import MAX_INT64, MAX_VERSION
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.runtime import check_time, time_limit
from featurestore.model.window_features import WindowFeature, window_from_json
from featurestore.plugins.remote import RETRIEVAL
from featurestore.retrieval import FeatureFrame
from featurestore.server.guard import Settings, Store
from featurestore.server.rest import REFUSALS
from featurestore.server.routes import Router
from featurestore.server.uploads import Upload, receive_upload
from featurestore.store import FeatureStore
from featurestore.usersql.row_functions import feature

Name = Annotated[str, Field(max_length=255)]
Names = Annotated[list[Name], Field(max_length=10_000)]
Reference = Annotated[str, Field(max_length=1000)]
Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]
DeltaVersion = Annotated[int, Field(ge=0, le=MAX_INT64)]
AsOf = DeltaVersion | Annotated[str, Field(max_length=100)]
# By group name: its version, or the table version to read.
Versions = Annotated[dict[Name, Version], Field(max_length=10_000)]
AsOfByGroup = Annotated[dict[Name, AsOf], Field(max_length=10_000)]


class _StrictModel(BaseModel, extra="forbid"):
    """Base class that rejects unknown fields."""


class ReadGroup(_StrictModel):
    """Read a feature group."""

    kind: Literal["featuregroup"]
    name: Name
    version: Version | None = None
    as_of: AsOf | None = None


class ReadFeatures(_StrictModel):
    """Join features to labels, which are uploaded or a feature group.

    A feature is a reference, ``{"window": ...}`` as returned by window_to_json, or ``{"on_demand":
    {name, sql}}``.
    """

    kind: Literal["features"]
    features: list[Reference | dict[str, Any]] = Field(min_length=1, max_length=10_000)
    labels: Name | None = None
    uploaded: bool = False
    label_time: Name | None = None
    versions: Versions | None = None
    join_key: Name | Names | dict[Name, Any] | None = None
    join: Literal["left", "inner"] = "left"
    as_of: AsOf | AsOfByGroup | None = None
    include_keys: bool = False
    created_time_filter: bool = True


class ReadSplit(_StrictModel):
    """Read a split of a training dataset."""

    kind: Literal["split"]
    name: Name
    version: Version
    split: Name


class Sample(_StrictModel):
    """Sample a fraction of the rows."""

    fraction: float
    seed: int = Field(default=0, ge=-MAX_INT64, le=MAX_INT64)
    by: Names | None = None


class Step(_StrictModel):
    """One step: exactly one of column selection, filter or sample."""

    select: Names | None = None
    filter: str | None = None
    sample: Sample | None = None


class Retrieval(_StrictModel):
    """A retrieval; ``answer`` "schema" requests only the schema, "count" the number of rows."""

    read: ReadGroup | ReadFeatures | ReadSplit = Field(discriminator="kind")
    steps: list[Step] = Field(default_factory=list, max_length=100)
    answer: Literal["rows", "schema", "count"] = "rows"
    limit: int | None = Field(default=None, ge=0, le=MAX_INT64)
    batch_rows: int = Field(default=65_536, ge=1, le=1_048_576)


def check_conditions(retrieval: Retrieval, *, max_characters: int) -> None:
    """Check the total length of all SQL in a retrieval.

    Raises:
        LimitExceeded: The SQL is too long.
    """
    sql_conditions = [step.filter for step in retrieval.steps if step.filter is not None]
    if isinstance(retrieval.read, ReadFeatures):
        sql_conditions += [
            _feature_sql(spec) for spec in retrieval.read.features if not isinstance(spec, str)
        ]
    check_sql(*sql_conditions, max_characters=max_characters)


def check_sql(*sql_strings: str, max_characters: int) -> None:
    """Check the total length of SQL strings.

    Raises:
        LimitExceeded: The SQL is too long.
    """
    # The SQL parser cannot be interrupted, so the time limit alone does not bound it.
    characters = sum(map(len, sql_strings))
    if characters > max_characters:
        raise LimitExceeded(
            f"The conditions of the request have {characters:,} characters; the limit is "
            f"{max_characters:,}.",
            hint="join a group of the values instead of listing them",
        )


def _feature_sql(feature: Mapping[str, Any]) -> str:
    on_demand = feature.get("on_demand")
    return str(on_demand.get("sql", "")) if isinstance(on_demand, dict) else ""


def build_frame(store: FeatureStore, retrieval: Retrieval, labels: object | None) -> FeatureFrame:
    """Build the lazy frame for a retrieval, without reading rows."""
    check_time()
    frame = _read_frame(store, retrieval.read, labels)
    for step in retrieval.steps:
        actions = [
            action for action in (step.select, step.filter, step.sample) if action is not None
        ]
        if len(actions) != 1:
            raise InvalidArgument("A step must have exactly one of select, filter and sample.")
        if step.select is not None:
            frame = frame.select(*step.select)
        elif step.filter is not None:
            frame = frame.filter(step.filter)
        elif step.sample is not None:
            sample = step.sample
            frame = frame.sample(fraction=sample.fraction, seed=sample.seed, by=sample.by)
    return frame


def _read_frame(
    store: FeatureStore, read: ReadGroup | ReadFeatures | ReadSplit, labels: object | None
) -> FeatureFrame:
    """Return the lazy frame of a group, of features or of a split."""
    frame: FeatureFrame
    if isinstance(read, ReadGroup):
        frame = store.get_featuregroup(read.name, version=read.version, as_of=read.as_of)
    elif isinstance(read, ReadSplit):
        frame = store.get_training_dataset(read.name, version=read.version).read(read.split)
    else:
        if read.uploaded != (labels is not None):
            raise InvalidArgument("uploaded=true requires labels in the request body.")
        frame = store.get_features(
            list(map(_parse_feature, read.features)),
            labels=labels if read.uploaded else read.labels,
            label_time=read.label_time,
            versions=read.versions,
            join_key=read.join_key,
            join=read.join,
            as_of=_parse_as_of(read.as_of),
            include_keys=read.include_keys,
            created_time_filter=read.created_time_filter,
        )
    return frame


def _parse_feature(spec: str | Mapping[str, Any]) -> str | WindowFeature | OnDemandFeature:
    """Parse a feature reference, a window feature or an on-demand feature."""
    if isinstance(spec, str):
        return spec
    try:
        data = JsonObject.from_value(spec, "features")
        if "window" in data:
            return window_from_json(data.object("window"))
        on_demand = data.object("on_demand")
        return feature(on_demand.text("name"), on_demand.text("sql"))
    except MalformedJson as error:
        raise InvalidArgument(f"Invalid feature: {error}.") from error


def _parse_as_of(as_of: int | str | Mapping[str, int | str] | None) -> Any:
    """Reject a Delta version, which refers to one group and not to a retrieval."""
    if isinstance(as_of, int):
        raise InvalidArgument(
            f"as_of={as_of} is a Delta version of one group, not of a retrieval.",
            hint="as_of={group: version}",
        )
    return as_of


MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COUNT_COLUMN = "rows"
_POLL_SECONDS = 0.1
_log = logging.getLogger("featurestore.server")
api = Router(tags=["rows"], responses=REFUSALS)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A line of JSON with the request, then rows as an Arrow stream.",
        "content": {RETRIEVAL: {"schema": {"type": "string"}}},
    }
}


def stream_chunks(frame: FeatureFrame, retrieval: Retrieval) -> Generator[bytes, None, None]:
    """Yield the Arrow stream of a frame lazily, starting with the schema."""
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
        # Protects _thread: a worker thread that already handles another request must not be
        # interrupted.
        self._lock = threading.Lock()
        self._first: bytes | None = None

    @property
    def seconds(self) -> float:
        """The time limit for a chunk, both to compute and to send it."""
        return self._seconds

    async def begin(self) -> None:
        """Compute the first chunk, so that errors are returned as an error response.

        Raises:
            FeatureStoreError: The retrieval failed.
        """
        try:
            self._first = await self._next_chunk()
        except BaseException:
            await self.end()
            raise

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks; the caller must call ``end`` afterwards.

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
        # A cancelled request must still remove its temporary files.
        await asyncio.shield(asyncio.to_thread(self._close))

    async def _next_chunk(self) -> bytes | None:
        """Return the next chunk, None at the end.

        Raises:
            QueryEnded: The chunk took too long, or the client disconnected.
        """
        computation = asyncio.ensure_future(asyncio.to_thread(self._compute_chunk))
        deadline = time.monotonic() + self._seconds
        try:
            while not computation.done():
                # Starlette reports a disconnect only when it is polled.
                await asyncio.wait([computation], timeout=_POLL_SECONDS)
                if not computation.done() and (
                    time.monotonic() > deadline or await self._is_disconnected()
                ):
                    self._interrupt_query()
        finally:
            # On cancellation, such as at shutdown, wait until the worker thread has stopped.
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
        """Compute the next chunk in a worker thread."""
        self._thread = threading.get_ident()
        try:
            with time_limit(self._seconds):
                return next(self._chunks, None)
        except KeyboardInterrupt:  # engines raise it for an interrupted query
            raise QueryEnded(
                f"The query was cancelled after {self._seconds:g} seconds.",
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
    """Streaming response with a ChunkProducer; a client that stops reading is disconnected."""

    def __init__(self, chunks: ChunkProducer) -> None:
        super().__init__(chunks.stream(), media_type=MEDIA_TYPE)
        self._producer = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # send() waits while the buffers are full, because the client does not read.
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._producer.seconds)

        try:
            await self.stream_response(send_in_time)
        except ClientDisconnected:
            _log.info("a client disconnected before the end of its response")
        except (QueryEnded, TimeoutError) as error:
            # The missing end-of-stream marker indicates to the client that rows are missing.
            _log.warning("a row stream was aborted: %s", error or "the client stopped reading")
        finally:
            await self._producer.end()


async def receive_request_upload(request: Request, settings: Settings) -> Upload:
    """Receive a complete request body as an upload."""
    return await receive_upload(request.stream(), max_bytes=settings.upload)


@api.post("/rows", openapi_extra=BODY, response_class=StreamingResponse)
async def stream_rows(
    request: Request,
    store: Store,
    settings: Settings,
    upload: Annotated[Upload, Depends(receive_request_upload)],
) -> ArrowResponse:
    """Return rows as an Arrow IPC stream; the query stops when the client disconnects."""
    try:
        # A long line would occupy the event loop.
        retrieval = await asyncio.to_thread(upload.parse_line, Retrieval)
        check_conditions(retrieval, max_characters=settings.condition)
    except InvalidArgument:
        # The producer, whose cleanup removes the upload, does not exist yet.
        await asyncio.to_thread(upload.remove)
        raise

    def chunks() -> Generator[bytes, None, None]:
        # The frame is built in the generator, which runs in a worker thread under the time limit.
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
