"""The list of all routes: the REST interface and the pages."""

from __future__ import annotations

from fastapi import APIRouter

from featurestore.server import (
    account,
    experiments,
    featuregroup_pages,
    featuregroups,
    home,
    job_actions,
    jobs,
    lineage_page,
    models,
    rows,
    search,
    training_datasets,
    writes,
)

api = APIRouter()
for _router in (
    home.api,
    search.api,
    lineage_page.api,
    featuregroups.api,
    training_datasets.api,
    jobs.api,
    experiments.api,
    rows.api,
    writes.api,
):
    api.include_router(_router)

pages = APIRouter()
for _router in (
    home.pages,
    search.pages,
    featuregroup_pages.pages,
    training_datasets.pages,
    search.view_pages,
    jobs.pages,
    job_actions.pages,
    jobs.monitor_pages,
    experiments.pages,
    models.pages,
    lineage_page.pages,
    search.basket_pages,
    home.metrics_router,
    account.pages,
    account.audit_pages,
):
    pages.include_router(_router)
