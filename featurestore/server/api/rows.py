"""Rows as an Arrow stream, for remote clients: of groups, features and splits."""

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
from featurestore.server.records.retrievals import Retrieval, check_conditions, frame_of
from featurestore.server.streams.answers import Answer, Stream, parts_of
from featurestore.server.streams.uploads import Upload, receive

router = APIRouter(tags=["rows"], responses=REFUSALS)
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A line of JSON that says what is asked, then rows as an Arrow stream.",
        "content": {RETRIEVAL: {"schema": {"type": "string"}}},
    }
}


async def uploaded(request: Request, settings: Settings) -> Upload:
    """Return what a client sends, once all of it has come."""
    return await receive(request.stream(), most=settings.upload)


@router.post("/rows", openapi_extra=BODY, response_class=StreamingResponse)
async def stream_rows(
    request: Request,
    store: Store,
    settings: Settings,
    upload: Annotated[Upload, Depends(uploaded)],
) -> Stream:
    """Return rows as an Arrow IPC stream; nothing is computed any more once the client is gone."""
    try:
        asked = upload.asked(Retrieval)
        check_conditions(asked, most=settings.condition)
    except InvalidArgument:
        await asyncio.to_thread(upload.remove)
        raise

    def parts() -> Generator[bytes, None, None]:
        yield from parts_of(frame_of(store, asked, upload.table()), asked)

    answer = Answer(
        parts(),
        interrupt=store.session.engine.interrupt,
        is_gone=request.is_disconnected,
        seconds=settings.seconds,
        done=upload.remove,
    )
    await answer.begin()
    return Stream(answer)
