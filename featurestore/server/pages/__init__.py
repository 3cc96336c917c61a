"""The pages, a module for each."""

from fastapi import APIRouter

from featurestore.server.pages import (
    account,
    audit,
    basket,
    feature_views,
    featuregroups,
    home,
    jobs,
    lineage,
    metrics,
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
    monitors,
    lineage,
    basket,
    metrics,
    account,
    audit,
):
    router.include_router(_module.router)
