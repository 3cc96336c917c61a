"""The list of training datasets, and the pages of one."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.server.context import Settings, Store
from featurestore.server.drawing.histogram import histogram
from featurestore.server.pages.paging import PageNumber, one_page
from featurestore.server.pages.rendering import csv_of, page, statistics_file
from featurestore.server.records import experiments
from featurestore.server.records import training_datasets as records
from featurestore.server.records.experiments import RunFilter
from featurestore.store import FeatureStore

router = APIRouter(prefix="/datasets")
_RUNS = 10
_COLUMNS = ["name", "version", "rows", "format", "created", "description"]


@router.get("")
def list_page(
    request: Request,
    store: Store,
    settings: Settings,
    q: str = "",
    number: PageNumber = 1,
    format: str = "html",
) -> Response:
    """Show the training datasets."""
    found = one_page(
        lambda limit, offset: records.lines(store, text=q.strip(), limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        return csv_of("training-datasets", _COLUMNS, found.items)
    return page(request, "datasets.html", title="Training datasets", found=found, q=q)


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Lead to the latest version."""
    dataset = store.get_training_dataset(name)
    return RedirectResponse(f"/datasets/{dataset.name}/{dataset.version}")


@router.get("/{name}/{version}")
def dataset_page(
    request: Request,
    store: Store,
    name: str,
    version: int,
    split: str = "",
    format: str = "html",
) -> Response:
    """Show what a manifest says: splits, columns, sources, and the statistics of a split."""
    dataset = store.get_training_dataset(name, version=version)
    shown = _shown(store, name, version)
    chosen = dataset.manifest.split(split or dataset.splits[0]).name
    counted = None
    if chosen in dataset.manifest.statistics:
        counted = dataset.statistics(chosen)
    if format == "csv":
        return statistics_file(f"{name}-v{version}-{chosen}", counted)
    columns = {}
    if counted is not None:
        columns = {each.name: each for each in counted.columns}
    return page(
        request,
        "dataset.html",
        **shown,
        tab="manifest",
        dataset=dataset,
        definition=records.definition(dataset),
        sources=records.sources(dataset),
        split=chosen,
        counted=counted,
        columns=columns,
        histogram=histogram,
        models=experiments.used(store, name, version),
        runs=experiments.find(store, RunFilter(dataset=name, version=version), limit=_RUNS),
    )


@router.get("/{name}/{version}/verify")
def verify_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show the button that reads every file again."""
    return _verify_page(request, store, name, version, verify=False)


@router.post("/{name}/{version}/verify")
def verify(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Read every file again and show what differs from the manifest."""
    return _verify_page(request, store, name, version, verify=True)


def _verify_page(
    request: Request, store: FeatureStore, name: str, version: int, *, verify: bool
) -> HTMLResponse:
    dataset = store.get_training_dataset(name, version=version)
    report = dataset.verify() if verify else None
    return page(
        request,
        "dataset_verify.html",
        **_shown(store, name, version),
        tab="verify",
        dataset=dataset,
        report=report,
    )


@router.get("/{name}/{version}/diff")
def diff_page(
    request: Request, store: Store, name: str, version: int, against: int | None = None
) -> HTMLResponse:
    """Show what changed from another version to this one."""
    dataset = store.get_training_dataset(name, version=version)
    report = None
    if against is not None:
        report = store.get_training_dataset(name, version=against).diff(dataset)
    return page(
        request,
        "dataset_diff.html",
        **_shown(store, name, version),
        tab="diff",
        dataset=dataset,
        report=report,
        against=against,
    )


def _shown(store: FeatureStore, name: str, version: int) -> dict[str, object]:
    return {"title": f"{name} v{version}", "versions": records.versions(store, name)}
