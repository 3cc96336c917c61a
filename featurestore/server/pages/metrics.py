"""The numbers of the store for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from featurestore.server.context import Store

router = APIRouter()


@router.get("/metrics")
def metrics(store: Store) -> PlainTextResponse:
    """Answer in Prometheus' text format; an error says what to install where its client misses."""
    return PlainTextResponse(
        store.get_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
