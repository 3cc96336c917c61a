"""Experiments: launch, search, ablate and compare training functions, and record their runs.

``from featurestore import experiments``. Each run has a directory in the store with its record
``run.json``, checkpoints, logs and TensorBoard events; the registry indexes the runs. Runs are
recorded in the store of the dataset, or else in the store last connected.
"""

from featurestore.errors import Stopped
from featurestore.experiments.launch_api import (
    collective_all_reduce,
    launch,
    mirrored,
    parameter_server,
)
from featurestore.experiments.record_api import (
    compare,
    get_model,
    get_models,
    get_run,
    get_runs,
    get_study,
    register_model,
    to_mlflow,
)
from featurestore.experiments.spaces import choice, integers, loguniform, uniform
from featurestore.experiments.study_api import ablate, cross_validate, search

__all__ = [
    "launch",
    "collective_all_reduce",
    "mirrored",
    "parameter_server",
    "search",
    "uniform",
    "loguniform",
    "integers",
    "choice",
    "ablate",
    "cross_validate",
    "get_runs",
    "get_run",
    "get_study",
    "compare",
    "to_mlflow",
    "register_model",
    "get_model",
    "get_models",
    "Stopped",
]


def __dir__() -> list[str]:
    return sorted(__all__)
