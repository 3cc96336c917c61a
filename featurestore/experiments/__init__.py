"""Experiments: training functions run, searched, taken apart and compared; their runs kept.

``from featurestore import experiments``. Each run has a directory in the store with its record
``run.json``, checkpoints, logs and events for TensorBoard; the registry indexes them. The store is
the one that the dataset comes from, else the one last connected.
"""

from featurestore.errors import Stopped
from featurestore.experiments.launch_calls import (
    collective_all_reduce,
    launch,
    mirrored,
    parameter_server,
)
from featurestore.experiments.model_calls import get_model, get_models, register_model
from featurestore.experiments.record_calls import compare, get_run, get_runs, get_study, to_mlflow
from featurestore.experiments.spaces import choice, integers, loguniform, uniform
from featurestore.experiments.study_calls import ablate, cross_validate, search

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
