"""Pages of training datasets: list, manifest, verification, comparison."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from featurestore.server.context import Settings, Store
from featurestore.server.drawing.histogram import histogram
from featurestore.server.pages.paging import PageNumber, load_page
from featurestore.server.pages.rendering import csv_of, page, statistics_file
from featurestore.server.records import experiments
from featurestore.server.records import training_datasets as records
from featurestore.server.records.experiments import RunFilter
from featurestore.store import FeatureStore

router = APIRouter(prefix="/datasets")
_MAX_RUNS = 10
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
    """List the training datasets."""
    current_page = load_page(
        lambda limit, offset: records.lines(store, text=q.strip(), limit=limit, offset=offset),
        number=number,
        size=settings.page,
    )
    if format == "csv":
        return csv_of("training-datasets", _COLUMNS, current_page.items)
    return page(request, "datasets.html", title="Training datasets", current_page=current_page, q=q)


@router.get("/{name}")
def latest(store: Store, name: str) -> RedirectResponse:
    """Redirect to the latest version."""
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
    """Show splits, columns, sources, and the statistics of a split."""
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
        definition=records.definition(dataset),
        sources=records.sources(dataset),
        split=split_name,
        columns=columns,
        histogram=histogram,
        models=experiments.models_trained_on(store, name, version),
        runs=experiments.find(store, RunFilter(dataset=name, version=version), limit=_MAX_RUNS),
    )


@router.get("/{name}/{version}/verify")
def verify_page(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Show the form that starts a verification."""
    return _verify_page(request, store, name, version, verify=False)


@router.post("/{name}/{version}/verify")
def verify(request: Request, store: Store, name: str, version: int) -> HTMLResponse:
    """Verify all files against the manifest and show the differences."""
    return _verify_page(request, store, name, version, verify=True)


def _verify_page(
    request: Request, store: FeatureStore, name: str, version: int, *, verify: bool
) -> HTMLResponse:
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


@router.get("/{name}/{version}/diff")
def diff_page(
    request: Request, store: Store, name: str, version: int, against: int | None = None
) -> HTMLResponse:
    """Show the differences between another version and this one."""
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
    return {"title": f"{name} v{version}", "versions": records.versions(store, name)}
