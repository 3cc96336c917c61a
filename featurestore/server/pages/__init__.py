"""Routes of the HTML pages."""

from fastapi import APIRouter

from featurestore.server.pages import (
    account,
    audit,
    basket,
    experiments,
    feature_views,
    featuregroups,
    home,
    job_changes,
    jobs,
    lineage,
    metrics,
    models,
    monitors,
    search,
    training_datasets,
)

router = APIRouter()
for _module in (
    home,
    search,
    featuregroups,
    training_datasets,
    feature_views,
    jobs,
    job_changes,
    monitors,
    experiments,
    models,
    lineage,
    basket,
    metrics,
    account,
    audit,
):
    router.include_router(_module.router)
