"""Training datasets: records, file downloads, REST routes and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from featurestore.errors import TrainingDatasetNotFound
from featurestore.model.manifest import format_source
from featurestore.registry import overview, training_datasets
from featurestore.registry.overview import DatasetLine
from featurestore.server import experiments
from featurestore.server.charts import histogram
from featurestore.server.experiments import RunFilter
from featurestore.server.guard import Settings, Store
from featurestore.server.rendering import (
    PageNumber,
    load_page,
    objects_to_csv,
    page,
    statistics_file,
)
from featurestore.server.rest import (
    REFUSALS,
    Items,
    Limit,
    Name,
    Offset,
    Record,
    Version,
    items,
    record,
)
from featurestore.server.routes import Router
from featurestore.storage import storage_for
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset
from featurestore.training.download import manifest_hashes

# Offsets with at most 18 digits fit into 64 bits.
_OPEN_RANGE = re.compile(r"bytes=(\d{1,18})-")
api = Router(prefix="/training-datasets", tags=["training datasets"], responses=REFUSALS)
_PART: dict[int | str, Record] = {
    206: {
        "description": "The remaining bytes of the file.",
        "content": {"application/octet-stream": {}},
    },
    416: {"description": "The range starts after the end of the file."},
}
Split = Annotated[str, Path(max_length=200, description="Name of a split.")]
pages = Router(prefix="/datasets")
_MAX_RUNS = 10
_MAX_MODELS = 50
_COLUMNS = ["name", "version", "rows", "format", "created", "description"]


def lines(
    store: FeatureStore, *, text: str = "", newest_first: bool = False, limit: int, offset: int = 0
) -> list[DatasetLine]:
    """Return one page of the dataset list."""
    with store.session.registry.reading() as connection:
        return overview.datasets(
            connection, text=text, newest_first=newest_first, limit=limit, offset=offset
        )


def versions(store: FeatureStore, name: str) -> list[int]:
    """Return the versions of a dataset, newest first."""
    with store.session.registry.reading() as connection:
        return training_datasets.versions(connection, name)[::-1]


def definition(dataset: TrainingDataset) -> Record:
    """Return the content of a manifest without file paths."""
    manifest = dataset.manifest
    splits = [
        {
            "name": split.name,
            "rows": split.rows,
            "shards": len(split.shards),
            "labels": split.label_counts,
        }
        for split in manifest.splits
    ]
    columns = [
        {"name": column.name, "type": column.tf_type, "role": column.role}
        for column in manifest.columns
    ]
    return {
        "name": dataset.name,
        "version": dataset.version,
        "description": dataset.description,
        "tags": dataset.tags,
        "data_format": manifest.data_format,
        "created": manifest.created,
        "rows": sum(split.rows for split in manifest.splits),
        "seed": manifest.seed,
        "key": list(manifest.key),
        "content_hash": manifest.content_hash,
        "plan_hash": manifest.plan_hash,
        "reproducible": manifest.reproducible,
        "reproducible_reason": manifest.reproducible_reason,
        "stale": dataset.stale,
        "splits": splits,
        "columns": columns,
        "sources": list(map(dict, manifest.sources)),
        "windows": list(map(str, manifest.windows)),
    }


def sources(dataset: TrainingDataset) -> list[Record]:
    """Return the pinned versions of a dataset's source groups."""
    return [
        {
            "text": format_source(source),
            "name": source["featuregroup"],
            "version": source["version"],
        }
        for source in dataset.manifest.sources
    ]


def file_response(dataset: TrainingDataset, path: str, range_header: str) -> StreamingResponse:
    """Return a file in the manifest, with its SHA-256 as ETag.

    Only open ranges (``bytes=1000-``) are supported; HTTP allows a server to ignore other ranges.

    Raises:
        TrainingDatasetNotFound: The manifest does not contain the file.
    """
    storage = storage_for(dataset.path)
    file_hashes = manifest_hashes(dataset.manifest)
    if path not in file_hashes:
        raise TrainingDatasetNotFound(
            f"Training dataset {dataset.name!r} version {dataset.version} has no file {path!r}.",
            hint=f"its manifest lists {len(file_hashes):,} files",
        )
    # A manipulated manifest or a symbolic link must not expose other files.
    full_path = storage.resolve_inside(dataset.path, path)
    size = storage.size(full_path)
    headers = {"etag": f'"{file_hashes[path]}"', "accept-ranges": "bytes"}
    range_match = _OPEN_RANGE.fullmatch(range_header)
    start = 0
    status = 200
    if range_match is not None:
        start, status = int(range_match[1]), 206
        headers["content-range"] = f"bytes {start}-{size - 1}/{size}"
    content: Iterator[bytes] = storage.read_chunks(full_path, start=start)
    if range_match is not None and start >= size:
        status, content = 416, iter(())
        headers["content-range"] = f"bytes */{size}"
    headers["content-length"] = str(max(0, size - start))
    return StreamingResponse(
        content, status_code=status, headers=headers, media_type="application/octet-stream"
    )


@api.get("")
def list_datasets(
    store: Store,
    q: Annotated[str, Query(max_length=200, description="Substring of the name.")] = "",
    limit: Limit = 100,
    offset: Offset = 0,
) -> Items:
    """List all versions of all training datasets."""
    return items(partial(lines, store, text=q), asdict, limit=limit, offset=offset)


@api.get("/{name}")
def get_latest(store: Store, name: Name) -> Record:
    """Return the latest version of a dataset and the list of all versions."""
    dataset = store.get_training_dataset(name)
    return record({**definition(dataset), "versions": versions(store, name)})


@api.get("/{name}/{version}")
def get_version(store: Store, name: Name, version: Version) -> Record:
    """Return the definition of a version from its manifest."""
    return record(definition(store.get_training_dataset(name, version=version)))


@api.get("/{name}/{version}/statistics/{split}")
def get_statistics(store: Store, name: Name, version: Version, split: Split) -> Record:
    """Return the statistics of a split (statistics.schema.json)."""
    return record(store.get_training_dataset(name, version=version).statistics(split).to_json())


@api.get("/{name}/{version}/manifest")
def get_manifest(store: Store, name: Name, version: Version) -> Response:
    """Return the stored manifest; the files it lists can be downloaded by path."""
    manifest = store.get_training_dataset(name, version=version).manifest
    return Response(manifest.to_bytes(), media_type="application/json")


@api.get("/{name}/{version}/files/{path:path}", response_class=StreamingResponse, responses=_PART)
def get_file(
    request: Request,
    store: Store,
    name: Name,
    version: Version,
    path: Annotated[str, Path(max_length=1000, description="Path of a file in the manifest.")],
) -> StreamingResponse:
    """Download a file of a version, optionally from an offset (``Range: bytes=1000-``)."""
    dataset = store.get_training_dataset(name, version=version)
    return file_response(dataset, path, request.headers.get("range", ""))


@api.post("/{name}/{version}/verify")
def verify(store: Store, name: Name, version: Version) -> Record:
    """Verify all files against the manifest and return the differences."""
    return record(store.get_training_dataset(name, version=version).verify().to_json())


@pages.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    q: str = "",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """List the training datasets."""
    current_page = load_page(
        partial(lines, store, text=q.strip()), number=number, size=settings.page
    )
    if format == "csv":
        return objects_to_csv("training-datasets", _COLUMNS, current_page.items)
    with store.session.registry.reading() as connection:
        names = [dataset.name for dataset in current_page.items]
        owner_tags = overview.read_owners(connection, overview.DATASET, names)
    return page(
        request,
        "datasets.html",
        title="Training datasets",
        current_page=current_page,
        owner_tags=owner_tags,
        q=q,
    )


@pages.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
    dataset = store.get_training_dataset(name)
    return RedirectResponse(f"/datasets/{dataset.name}/{dataset.version}")


@pages.get("/{name}/{version}")
def dataset_page(
    request: Request, store: Store, name: str, version: int, split: str = "", format: str = "html"
) -> Response:
    """Display splits, columns, sources, and the statistics of a split."""
    dataset = store.get_training_dataset(name, version=version)
    common = _common_values(store, name, version)
    split_name = dataset.manifest.split(split or dataset.splits[0]).name
    statistics = None
    if split_name in dataset.manifest.statistics:
        statistics = dataset.statistics(split_name)
    if format == "csv":
        return statistics_file(f"{name}-v{version}-{split_name}", statistics)
    columns = {}
    if statistics is not None:
        columns = {
            column_statistics.name: column_statistics for column_statistics in statistics.columns
        }
    return page(
        request,
        "dataset.html",
        **common,
        tab="manifest",
        dataset=dataset,
        definition=definition(dataset),
        sources=sources(dataset),
        split=split_name,
        columns=columns,
        histogram=histogram,
        models=experiments.models_trained_on(store, name, version, limit=_MAX_MODELS + 1),
        max_models=_MAX_MODELS,
        runs=experiments.find(store, RunFilter(dataset=name, version=version), limit=_MAX_RUNS),
    )


@pages.get("/{name}/{version}/verify")
def verify_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Display the form that starts a verification."""
    return _verify_page(request, store, name, version, verify=False)


@pages.post("/{name}/{version}/verify")
def start_verification(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Verify all files against the manifest and display the differences."""
    return _verify_page(request, store, name, version, verify=True)


def _verify_page(
    request: Request, store: FeatureStore, name: str, version: int, *, verify: bool
) -> HTMLResponse:
    """Render the verification page, with a report if ``verify``."""
    dataset = store.get_training_dataset(name, version=version)
    report = dataset.verify() if verify else None
    return page(
        request,
        "dataset_verify.html",
        **_common_values(store, name, version),
        tab="verify",
        dataset=dataset,
        report=report,
    )


@pages.get("/{name}/{version}/diff")
def diff_page(
    request: Request, store: Store, name: str, version: int, against: int | None = None
) -> HTMLResponse:
    """Display the differences between another version and this one."""
    dataset = store.get_training_dataset(name, version=version)
    report = None
    if against is not None:
        report = store.get_training_dataset(name, version=against).diff(dataset)
    return page(
        request,
        "dataset_diff.html",
        **_common_values(store, name, version),
        tab="diff",
        dataset=dataset,
        report=report,
        against=against,
    )


def _common_values(store: FeatureStore, name: str, version: int) -> dict[str, object]:
    return {"title": f"{name} v{version}", "versions": versions(store, name)}
