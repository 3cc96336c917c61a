"""REST route of rows as an Arrow stream, for remote clients."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from featurestore.errors import InvalidArgument
from featurestore.plugins.remote import RETRIEVAL
from featurestore.server.api.answers import REFUSALS
from featurestore.server.context import Settings, Store
from featurestore.server.records.retrievals import Retrieval, build_frame, check_conditions
from featurestore.server.streams.answers import ArrowResponse, ChunkProducer, stream_chunks
from featurestore.server.streams.uploads import Upload, receive_upload

router = APIRouter(tags=["rows"], responses=REFUSALS)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A line of JSON with the request, then rows as an Arrow stream.",
        "content": {RETRIEVAL: {"schema": {"type": "string"}}},
    }
}


async def received_upload(request: Request, settings: Settings) -> Upload:
    """Receive the complete upload of a request."""
    return await receive_upload(request.stream(), max_bytes=settings.upload)


@router.post("/rows", openapi_extra=BODY, response_class=StreamingResponse)
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
