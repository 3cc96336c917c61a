"""A feature store for deep-learning training.

Every method of ``FeatureStore`` is also a function of this module, which uses the most recently
connected store (or connects the default store at first use). Importing this module imports no other
library: names are imported when they are first used.
"""

from __future__ import annotations

from typing import Any

from featurestore import _current
from featurestore._imports import import_uninterrupted, uninterrupted

__version__ = "0.1.0"

# The modules of public names that are not methods of FeatureStore.
_HOMES = {
    "FeatureStore": "featurestore.store",
    "connect": "featurestore.store",
    "TimeSplit": "featurestore.model.requests",
    "TrainingDataset": "featurestore.training",
    "FeatureGroup": "featurestore.featuregroups",
    "FeatureFrame": "featurestore.retrieval",
    "FeatureView": "featurestore.views",
    "FeatureStoreError": "featurestore.errors",
    "catalog_job": "featurestore.jobs",
    "cast": "featurestore.conversion",
    "compare_statistics": "featurestore.statistics",
    "job": "featurestore.jobs",
    "publish_job": "featurestore.jobs",
    "rename": "featurestore.conversion",
    "sql_job": "featurestore.jobs",
    "stream_job": "featurestore.jobs",
    "training_job": "featurestore.jobs",
    "window_job": "featurestore.jobs",
    "model_monitor_job": "featurestore.jobs",
    "monitor_job": "featurestore.jobs",
    "baseline": "featurestore.jobs",
    "source": "featurestore.model.source",
    "feature": "featurestore.usersql.row_functions",
    "window": "featurestore.model.window_features",
    "windows": "featurestore.model.window_features",
}

# FeatureStore methods that are also functions of this module (a test compares both lists).
_FUNCTIONS = (
    "create_featuregroup",
    "get_or_create_featuregroup",
    "insert_into_featuregroup",
    "delete_from_featuregroup",
    "featuregroup",
    "get_featuregroup",
    "get_featuregroups",
    "get_latest_featuregroup_version",
    "get_featuregroup_history",
    "get_featuregroup_partitions",
    "get_features_list",
    "search",
    "add_featuregroup_tag",
    "get_featuregroup_tags",
    "remove_featuregroup_tag",
    "update_featuregroup",
    "rename_feature",
    "compact_featuregroup",
    "vacuum_featuregroup",
    "verify_featuregroup",
    "delete_featuregroup",
    "get_feature",
    "get_features",
    "sql",
    "explain_features",
    "check_leakage",
    "create_feature_view",
    "get_feature_view",
    "get_feature_views",
    "delete_feature_view",
    "publish",
    "create_training_dataset",
    "get_training_dataset",
    "get_training_datasets",
    "get_latest_training_dataset_version",
    "get_training_dataset_tf_record_schema",
    "get_dataframe_tf_record_schema",
    "add_training_dataset_tag",
    "get_training_dataset_tags",
    "remove_training_dataset_tag",
    "update_training_dataset",
    "delete_training_dataset",
    "score",
    "validate_featuregroup",
    "get_validation_history",
    "get_featuregroup_quarantine",
    "get_featuregroup_statistics",
    "update_featuregroup_statistics",
    "visualize_featuregroup_correlations",
    "visualize_featuregroup_distributions",
    "visualize_featuregroup_clusters",
    "visualize_featuregroup_descriptive_stats",
    "visualize_training_dataset_correlations",
    "visualize_training_dataset_distributions",
    "visualize_training_dataset_clusters",
    "visualize_training_dataset_descriptive_stats",
    "register_jobs",
    "get_jobs",
    "plan_job",
    "run_job",
    "backfill_job",
    "get_runs",
    "pause_job",
    "remove_job",
    "replay_quarantine",
    "unpause_job",
    "check_monitor",
    "accept_monitor",
    "get_monitors",
    "get_monitor_history",
    "visualize_monitor",
    "get_metrics",
    "add_alert_channel",
    "get_alert_channels",
    "remove_alert_channel",
    "get_alerts",
    "send_alerts",
    "add_source",
    "get_sources",
    "check_source",
    "remove_source",
    "read_source",
    "create_external_featuregroup",
    "register_in",
    "add_dbt_project",
    "plan_dbt_project",
    "write_dbt_exposures",
    "add_online_store",
    "get_online_stores",
    "remove_online_store",
    "purge_online_store",
    "plan",
    "apply",
    "erase",
    "verify_erasure",
)

__all__ = ["__version__", *_HOMES, *_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_uninterrupted(_HOMES[name]), name)
    if name in _FUNCTIONS:
        return _function(name)
    raise AttributeError(f"module 'featurestore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


# Functions that do not connect the default store.
_current.connect_default = lambda: __getattr__("connect")()


def _function(name: str) -> Any:
    """Return a FeatureStore method as a function of the current store."""
    import functools
    import inspect

    with uninterrupted():
        from featurestore.store import FeatureStore

    method = getattr(FeatureStore, name)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(_current.current_store(), *args, **kwargs)

    signature = inspect.signature(method)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    # The next access finds the function without ``__getattr__``.
    globals()[name] = call
    return call
