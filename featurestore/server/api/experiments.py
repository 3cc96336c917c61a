"""REST routes of experiment runs and registered models."""

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
    """List runs with parameters and metrics, newest first, without trials of studies."""
    run_filter = RunFilter(name, dataset)
    return items(
        lambda count, skipped: records.find(store, run_filter, limit=count, offset=skipped),
        lambda run: {**records.summarize(run), "params": run.params, "metrics": run.metrics},
        limit=limit,
        offset=offset,
    )


@router.get("/experiments/{run_id}")
def get_run(store: Store, run_id: RunId) -> dict[str, Any]:
    """Return the record of a run, and its metrics by step."""
    run = records.get(store, run_id)
    return record({**run.to_json(), "reported": records.metrics(run)})


@router.get("/models")
def list_models(store: Store, limit: Limit = 100, offset: Offset = 0) -> Items:
    """List all versions of all models."""
    return items(
        lambda count, skipped: models.find(store, limit=count, offset=skipped),
        models.summarize,
        limit=limit,
        offset=offset,
    )


@router.get("/models/{name}/{version}")
def get_model(store: Store, name: Name, version: Version) -> dict[str, Any]:
    """Return the training dataset, inputs and outputs of a model."""
    return record(models.get(store, name, version).to_json())
