"""Routes of the REST interface below ``/api/v1``."""

from fastapi import APIRouter

from featurestore.server.api import (
    experiments,
    featuregroups,
    jobs,
    rows,
    store,
    training_datasets,
    writes,
)

router = APIRouter()
for _module in (store, featuregroups, training_datasets, jobs, experiments, rows, writes):
    router.include_router(_module.router)
