"""The REST interface, below ``/api/v1``: what pages show, for programs."""

from fastapi import APIRouter

from featurestore.server.api import featuregroups, jobs, store, training_datasets

router = APIRouter()
for _module in (store, featuregroups, training_datasets, jobs):
    router.include_router(_module.router)
