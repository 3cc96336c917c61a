"""Runs of experiments, and registered models."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

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
from featurestore.server.records import experiments as records
from featurestore.server.records import models
from featurestore.server.records.experiments import RunFilter

router = APIRouter(tags=["experiments"], responses=REFUSALS)
RunId = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9-]{3,63}$", description="Id of a run.")]
Text = Annotated[str, Query(max_length=63, pattern="^([a-z][a-z0-9_]*)?$")]


@router.get("/experiments")
def list_runs(
    store: Store, name: Text = "", dataset: Text = "", limit: Limit = 100, offset: Offset = 0
) -> Items:
    """Return runs with their parameters and metrics, the newest first; no trials of studies."""
    wanted = RunFilter(name, dataset)
    return items(
        lambda count, skipped: records.find(store, wanted, limit=count, offset=skipped),
        lambda run: {**records.told(run), "params": run.params, "metrics": run.metrics},
        limit=limit,
        offset=offset,
    )


@router.get("/experiments/{run_id}")
def get_run(store: Store, run_id: RunId) -> dict[str, Any]:
    """Return the record of a run, and each metric by step."""
    run = records.get(store, run_id)
    return record({**run.to_json(), "reported": records.metrics(run)})


@router.get("/models")
def list_models(store: Store, limit: Limit = 100, offset: Offset = 0) -> Items:
    """Return every version of every model."""
    return items(
        lambda count, skipped: models.find(store, limit=count, offset=skipped),
        models.line,
        limit=limit,
        offset=offset,
    )


@router.get("/models/{name}/{version}")
def get_model(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Return what a model was trained on, and what it takes and gives."""
    return record(models.get(store, name, version).to_json())
