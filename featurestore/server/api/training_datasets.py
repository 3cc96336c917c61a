"""REST routes of training datasets: manifests, statistics, files, verification."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from featurestore.server.api.answers import (
    REFUSALS,
    Items,
    Limit,
    Name,
    Offset,
    Version,
    items,
    record,
)
from featurestore.server.context import Store
from featurestore.server.records import training_datasets as records
from featurestore.server.streams.files import file_response

router = APIRouter(prefix="/training-datasets", tags=["training datasets"], responses=REFUSALS)
_PART: dict[int | str, dict[str, Any]] = {
    206: {
        "description": "The remaining bytes of the file.",
        "content": {"application/octet-stream": {}},
    },
    416: {"description": "The range starts after the end of the file."},
}
Split = Annotated[str, Path(max_length=200, description="Name of a split.")]


@router.get("")
def list_datasets(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List all versions of all training datasets."""
    return items(
        lambda count, skipped: records.lines(store, text=q, limit=count, offset=skipped),
        asdict,
        limit=limit,
        offset=offset,
    )


@router.get("/{name}")
def get_latest(store: Store, name: Name) -> dict[str, Any]:
    """Return the latest version of a dataset and the list of its versions."""
    dataset = store.get_training_dataset(name)
    return record({**records.definition(dataset), "versions": records.versions(store, name)})


@router.get("/{name}/{version}")
def get_version(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Return the definition of a version from its manifest."""
    return record(records.definition(store.get_training_dataset(name, version=version)))


@router.get("/{name}/{version}/statistics/{split}")
def get_statistics(store: Store, name: Name, version: Version, split: Split) -> dict[str, Any]:
    """Return the statistics of a split (statistics.schema.json)."""
    return record(store.get_training_dataset(name, version=version).statistics(split).to_json())


@router.get("/{name}/{version}/manifest")
def get_manifest(store: Store, name: Name, version: Version) -> Response:
    """Return the stored manifest; its files can be downloaded by their paths."""
    manifest = store.get_training_dataset(name, version=version).manifest
    return Response(manifest.to_bytes(), media_type="application/json")


@router.get(
    "/{name}/{version}/files/{path:path}", response_class=StreamingResponse, responses=_PART
)
def get_file(
    request: Request,
    store: Store,
    name: Name,
    version: Version,
    path: Annotated[str, Path(max_length=1000, description="Path of a file in the manifest.")],
) -> StreamingResponse:
    """Download a file of a version, or the bytes from an offset (``Range: bytes=1000-``)."""
    dataset = store.get_training_dataset(name, version=version)
    return file_response(dataset, path, request.headers.get("range", ""))


@router.post("/{name}/{version}/verify")
def verify(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Verify all files against the manifest and return the differences."""
    return record(store.get_training_dataset(name, version=version).verify().to_json())
