"""Metrics of the store for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from featurestore.server.context import Store

router = APIRouter()


@router.get("/metrics")
def metrics(store: Store) -> PlainTextResponse:
    """Return the metrics in the text format of Prometheus."""
    return PlainTextResponse(
        store.get_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
