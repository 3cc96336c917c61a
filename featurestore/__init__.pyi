"""A feature store for people who train deep-learning models.

Written by scripts/write_stub.py.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from matplotlib.figure import Figure
from pyspark.sql import DataFrame as SparkDataFrame

from featurestore.conversion import cast as cast
from featurestore.conversion import rename as rename
from featurestore.dbt import DbtImport
from featurestore.errors import FeatureStoreError as FeatureStoreError
from featurestore.experiments.models import Model
from featurestore.featuregroups import FeatureGroup as FeatureGroup
from featurestore.featuregroups.discovery import Match
from featurestore.featuregroups.table import TableVersion
from featurestore.featuregroups.write_request import Inputs
from featurestore.jobs import baseline as baseline
from featurestore.jobs import catalog_job as catalog_job
from featurestore.jobs import job as job
from featurestore.jobs import model_monitor_job as model_monitor_job
from featurestore.jobs import monitor_job as monitor_job
from featurestore.jobs import publish_job as publish_job
from featurestore.jobs import sql_job as sql_job
from featurestore.jobs import stream_job as stream_job
from featurestore.jobs import training_job as training_job
from featurestore.jobs import window_job as window_job
from featurestore.jobs.monitors.service import MonitorStatus
from featurestore.jobs.removal import RemovedJob
from featurestore.jobs.service import JobPlan, JobStatus
from featurestore.model.alert import Channel
from featurestore.model.erasure import ErasureCheck, ErasureReport
from featurestore.model.featuregroup import Commit
from featurestore.model.group_options import TypeName
from featurestore.model.monitor_report import Acceptance, MonitorReport
from featurestore.model.on_demand import OnDemandFeature
from featurestore.model.online_store import OnlineStoreSpec
from featurestore.model.plan import FeaturePlan
from featurestore.model.project import ProjectPlan
from featurestore.model.requests import JoinKey
from featurestore.model.requests import TimeSplit as TimeSplit
from featurestore.model.source import SourceReport, SourceSpec
from featurestore.model.source import source as source
from featurestore.model.statistics import Statistics
from featurestore.model.times import Window
from featurestore.model.validation import ValidationReport
from featurestore.model.verification import GroupVerifyReport
from featurestore.model.window_features import WindowFeature
from featurestore.model.window_features import window as window
from featurestore.model.window_features import windows as windows
from featurestore.monitoring.page import MonitorPage
from featurestore.plugins.engine import Engine
from featurestore.registry.alerts import Outgoing
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import Run
from featurestore.retrieval import FeatureFrame as FeatureFrame
from featurestore.retrieval import LeakReport
from featurestore.serving.publication import Publication
from featurestore.serving.purge import PurgeReport
from featurestore.sources import SourceFrame
from featurestore.sources.catalogs import CatalogRegistration
from featurestore.statistics import compare_statistics as compare_statistics
from featurestore.store import FeatureStore as FeatureStore
from featurestore.streams.replay import Replayed
from featurestore.training import TrainingDataset as TrainingDataset
from featurestore.transform import Chain
from featurestore.usersql.row_functions import feature as feature
from featurestore.views import FeatureView as FeatureView

__version__: str

def connect(
    location: str | os.PathLike[str] | None = None,
    *,
    engine: str | Engine | None = None,
    registry: str | None = None,
    durability: Literal["full", "fast"] | None = None,
    storage_options: Mapping[str, str] | None = None,
    token: str | None = None,
    progress: bool | None = None,
) -> FeatureStore: ...
def create_featuregroup(
    df: object,
    name: str,
    *,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: str | Sequence[str] = (),
    version: int | None = None,
    ttl: timedelta | str | None = None,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    validation: str = "strict",
    event_time_tolerance: timedelta | str | None = None,
    statistics: bool = True,
    compact: Literal["auto"] | None = None,
    iceberg: bool = False,
    rename: Mapping[str, str] | str | None = None,
    dtypes: Mapping[str, TypeName] | None = None,
    decimal_type: TypeName | None = None,
    inputs: Inputs = (),
    if_exists: Literal["version", "error", "return"] = "version",
) -> FeatureGroup: ...
def get_or_create_featuregroup(
    df: object,
    name: str,
    *,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    partition_by: str | Sequence[str] = (),
    version: int | None = None,
    ttl: timedelta | str | None = None,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    validation: str = "strict",
    event_time_tolerance: timedelta | str | None = None,
    statistics: bool = True,
    compact: Literal["auto"] | None = None,
    iceberg: bool = False,
    rename: Mapping[str, str] | str | None = None,
    dtypes: Mapping[str, TypeName] | None = None,
    decimal_type: TypeName | None = None,
    inputs: Inputs = (),
) -> FeatureGroup: ...
def insert_into_featuregroup(
    df: object,
    name: str,
    *,
    version: int | None = None,
    mode: Literal["append", "upsert", "overwrite"] = "append",
    schema_change: Literal["add"] | None = None,
    on_duplicates: Literal["error", "last"] = "error",
    transaction: tuple[str, int] | None = None,
    validation: str | None = None,
    rename: Mapping[str, str] | str | None = None,
) -> Commit: ...
def delete_from_featuregroup(name: str, where: str, *, version: int | None = None) -> Commit: ...
def featuregroup(name: str, *, version: int | None = None) -> FeatureGroup: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: None = None,
    verify: Literal["sample", "all"] | None = None,
) -> FeatureFrame: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["pandas"],
    verify: Literal["sample", "all"] | None = None,
) -> pd.DataFrame: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["polars"],
    verify: Literal["sample", "all"] | None = None,
) -> pl.DataFrame: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["arrow"],
    verify: Literal["sample", "all"] | None = None,
) -> pa.Table: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["numpy"],
    verify: Literal["sample", "all"] | None = None,
) -> np.ndarray[Any, Any]: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["python"],
    verify: Literal["sample", "all"] | None = None,
) -> list[dict[str, Any]]: ...
@overload
def get_featuregroup(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | str | int | None = None,
    dataframe_type: Literal["spark"],
    verify: Literal["sample", "all"] | None = None,
) -> SparkDataFrame: ...
def get_featuregroups(*, limit: int | None = None, offset: int = 0) -> list[FeatureGroup]: ...
def get_latest_featuregroup_version(name: str) -> int: ...
def get_featuregroup_history(
    name: str, *, version: int | None = None, limit: int = 100, before: int | None = None
) -> list[Commit]: ...
def get_featuregroup_partitions(
    name: str, *, version: int | None = None
) -> list[dict[str, Any]]: ...
def get_features_list() -> list[str]: ...
def search(text: str, *, limit: int | None = None) -> list[Match]: ...
def add_featuregroup_tag(
    name: str, key: str, value: str, *, version: int | None = None
) -> None: ...
def get_featuregroup_tags(name: str, *, version: int | None = None) -> dict[str, str]: ...
def remove_featuregroup_tag(name: str, key: str, *, version: int | None = None) -> None: ...
def update_featuregroup(
    name: str,
    *,
    version: int | None = None,
    description: str | None = None,
    descriptions: Mapping[str, str] | None = None,
    expectations: object = None,
    validation: str | None = None,
    ttl: timedelta | str | None = None,
    event_time_tolerance: timedelta | str | None = None,
    statistics: bool | None = None,
    compact: Literal["auto", ""] | None = None,
) -> FeatureGroup: ...
def rename_feature(name: str, old: str, new: str) -> FeatureGroup: ...
def compact_featuregroup(name: str, *, version: int | None = None) -> Commit: ...
def vacuum_featuregroup(
    name: str, *, version: int | None = None, retain: timedelta | str = "30d"
) -> Sequence[str]: ...
def verify_featuregroup(
    name: str, *, version: int | None = None, sample: int | None = None
) -> GroupVerifyReport: ...
def delete_featuregroup(name: str, *, version: int, force: bool = False) -> None: ...
@overload
def get_feature(feature: str, *, dataframe_type: None = None) -> FeatureFrame: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["pandas"]) -> pd.DataFrame: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["polars"]) -> pl.DataFrame: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["arrow"]) -> pa.Table: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["numpy"]) -> np.ndarray[Any, Any]: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["python"]) -> list[dict[str, Any]]: ...
@overload
def get_feature(feature: str, *, dataframe_type: Literal["spark"]) -> SparkDataFrame: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: None = None,
    verify: Literal["sample", "all"] | None = None,
) -> FeatureFrame: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["pandas"],
    verify: Literal["sample", "all"] | None = None,
) -> pd.DataFrame: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["polars"],
    verify: Literal["sample", "all"] | None = None,
) -> pl.DataFrame: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["arrow"],
    verify: Literal["sample", "all"] | None = None,
) -> pa.Table: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["numpy"],
    verify: Literal["sample", "all"] | None = None,
) -> np.ndarray[Any, Any]: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["python"],
    verify: Literal["sample", "all"] | None = None,
) -> list[dict[str, Any]]: ...
@overload
def get_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
    dataframe_type: Literal["spark"],
    verify: Literal["sample", "all"] | None = None,
) -> SparkDataFrame: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: None = None,
) -> FeatureFrame: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["pandas"],
) -> pd.DataFrame: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["polars"],
) -> pl.DataFrame: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["arrow"],
) -> pa.Table: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["numpy"],
) -> np.ndarray[Any, Any]: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["python"],
) -> list[dict[str, Any]]: ...
@overload
def sql(
    query: str,
    *,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    dataframe_type: Literal["spark"],
) -> SparkDataFrame: ...
def explain_features(
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature],
    *,
    labels: object | None = None,
    label_time: datetime | str | None = None,
    versions: Mapping[str, int] | None = None,
    join_key: JoinKey | None = None,
    join: Literal["left", "inner"] = "left",
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    include_keys: bool = False,
    created_time_filter: bool = True,
) -> FeaturePlan: ...
def check_leakage(
    frame: FeatureFrame,
    *,
    sample: int = 1000,
    seed: int = 0,
    recompute: Mapping[str, Callable[[datetime], object]] | None = None,
) -> LeakReport: ...
def create_feature_view(
    name: str,
    *,
    features: str
    | WindowFeature
    | OnDemandFeature
    | Sequence[str | WindowFeature | OnDemandFeature | Mapping[str, Any]],
    labels: str | None = None,
    label: str | Sequence[str] | None = None,
    label_time: str | None = None,
    transformations: Mapping[str, Chain] | None = None,
    version: int | None = None,
    description: str = "",
    tags: Mapping[str, str] | None = None,
) -> FeatureView: ...
def get_feature_view(name: str, *, version: int | None = None) -> FeatureView: ...
def get_feature_views(*, limit: int | None = None, offset: int = 0) -> list[FeatureView]: ...
def delete_feature_view(name: str, *, version: int) -> None: ...
def publish(
    view: str | FeatureView,
    *,
    to: str | None = None,
    version: int | None = None,
    full: bool = False,
) -> Publication: ...
def create_training_dataset(
    data: object,
    name: str,
    *,
    label: str | Sequence[str] | None = None,
    features: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    weight: str | None = None,
    data_format: str = "tfrecord",
    splits: Mapping[str, float] | TimeSplit | None = None,
    split_by: str | Sequence[str] | None = None,
    stratify: str | Sequence[str] | None = None,
    seed: int = 0,
    key: str | Sequence[str] | None = None,
    shards: int | None = None,
    rows_per_shard: int | None = None,
    block_rows: int | None = None,
    version: int | None = None,
    compression: str | None = None,
    max_lengths: Mapping[str, int] | None = None,
    description: str = "",
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    validation: str = "strict",
    statistics: bool = True,
    transformations: Mapping[str, Chain] | None = None,
    fit_on: str = "train",
    missing_labels: str = "error",
    progress: bool | Callable[[str, int, int], None] | None = None,
) -> TrainingDataset: ...
def get_training_dataset(name: str, *, version: int | None = None) -> TrainingDataset: ...
def get_training_datasets(
    *, limit: int | None = None, offset: int = 0
) -> list[TrainingDataset]: ...
def get_latest_training_dataset_version(name: str) -> int: ...
def get_training_dataset_tf_record_schema(
    name: str, *, version: int | None = None
) -> dict[str, Any]: ...
def get_dataframe_tf_record_schema(df: object) -> dict[str, Any]: ...
def add_training_dataset_tag(
    name: str, key: str, value: str, *, version: int | None = None
) -> None: ...
def get_training_dataset_tags(name: str, *, version: int | None = None) -> dict[str, str]: ...
def remove_training_dataset_tag(name: str, key: str, *, version: int | None = None) -> None: ...
def update_training_dataset(
    name: str, *, version: int | None = None, description: str
) -> TrainingDataset: ...
def delete_training_dataset(name: str, *, version: int, force: bool = False) -> None: ...
def score(
    model: Model | str,
    *,
    labels: object,
    label_time: datetime | str | None = None,
    as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
    featuregroup: str | None = None,
    key: str | Sequence[str] = (),
    trust: bool = False,
) -> FeatureFrame: ...
def validate_featuregroup(
    name: str, *, version: int | None = None, expectations: object = None
) -> ValidationReport: ...
def get_validation_history(
    name: str, *, version: int | None = None, limit: int | None = None
) -> list[ValidationReport]: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: None = None
) -> FeatureFrame: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["pandas"]
) -> pd.DataFrame: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["polars"]
) -> pl.DataFrame: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["arrow"]
) -> pa.Table: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["numpy"]
) -> np.ndarray[Any, Any]: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["python"]
) -> list[dict[str, Any]]: ...
@overload
def get_featuregroup_quarantine(
    name: str, *, version: int | None = None, dataframe_type: Literal["spark"]
) -> SparkDataFrame: ...
def get_featuregroup_statistics(
    name: str, *, version: int | None = None, delta_version: TableVersion | None = None
) -> Statistics: ...
def update_featuregroup_statistics(name: str, *, version: int | None = None) -> Statistics: ...
@overload
def visualize_featuregroup_correlations(
    name: str,
    *,
    version: int | None = None,
    compare_with: int | str | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool | None = None,
    method: str = "pearson",
) -> None: ...
@overload
def visualize_featuregroup_correlations(
    name: str,
    *,
    version: int | None = None,
    compare_with: int | str | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool | None = None,
    method: str = "pearson",
) -> Figure: ...
@overload
def visualize_featuregroup_distributions(
    name: str,
    *,
    version: int | None = None,
    compare_with: int | str | None = None,
    columns: Sequence[str] | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
) -> None: ...
@overload
def visualize_featuregroup_distributions(
    name: str,
    *,
    version: int | None = None,
    compare_with: int | str | None = None,
    columns: Sequence[str] | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
) -> Figure: ...
@overload
def visualize_featuregroup_clusters(
    name: str,
    *,
    version: int | None = None,
    clusters: int | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
) -> None: ...
@overload
def visualize_featuregroup_clusters(
    name: str,
    *,
    version: int | None = None,
    clusters: int | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
) -> Figure: ...
@overload
def visualize_featuregroup_descriptive_stats(
    name: str, *, version: int | None = None, plot: Literal[True]
) -> None: ...
@overload
def visualize_featuregroup_descriptive_stats(
    name: str, *, version: int | None = None, plot: Literal[False] = False
) -> pd.DataFrame: ...
@overload
def visualize_training_dataset_correlations(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    compare_with: str | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool | None = None,
    method: str = "pearson",
) -> None: ...
@overload
def visualize_training_dataset_correlations(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    compare_with: str | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
    cmap: str = "coolwarm",
    annot: bool | None = None,
    method: str = "pearson",
) -> Figure: ...
@overload
def visualize_training_dataset_distributions(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    compare_with: str | None = None,
    columns: Sequence[str] | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
) -> None: ...
@overload
def visualize_training_dataset_distributions(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    compare_with: str | None = None,
    columns: Sequence[str] | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
) -> Figure: ...
@overload
def visualize_training_dataset_clusters(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    clusters: int | None = None,
    plot: Literal[True] = True,
    figsize: tuple[float, float] | None = None,
) -> None: ...
@overload
def visualize_training_dataset_clusters(
    name: str,
    *,
    version: int | None = None,
    split: str | None = None,
    clusters: int | None = None,
    plot: Literal[False],
    figsize: tuple[float, float] | None = None,
) -> Figure: ...
@overload
def visualize_training_dataset_descriptive_stats(
    name: str, *, version: int | None = None, split: str | None = None, plot: Literal[True]
) -> None: ...
@overload
def visualize_training_dataset_descriptive_stats(
    name: str, *, version: int | None = None, split: str | None = None, plot: Literal[False] = False
) -> pd.DataFrame: ...
def register_jobs(module_or_path: ModuleType | str | os.PathLike[str]) -> list[RegisteredJob]: ...
def get_jobs(*, limit: int | None = None, offset: int = 0) -> list[JobStatus]: ...
def plan_job(
    name: str, *, window: Window | tuple[datetime | str, datetime | str] | None = None
) -> JobPlan: ...
def run_job(
    name: str,
    *,
    window: Window | datetime | str | None = None,
    due: bool = False,
    stale: bool = False,
) -> list[Run]: ...
def backfill_job(
    name: str,
    start: datetime | str,
    end: datetime | str,
    *,
    resume: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> list[Run]: ...
def get_runs(name: str, *, last: int | None = None) -> list[Run]: ...
def pause_job(name: str) -> None: ...
def remove_job(name: str) -> RemovedJob: ...
def replay_quarantine(name: str) -> Replayed: ...
def unpause_job(name: str) -> None: ...
def check_monitor(name: str, *, window: Window | datetime | str | None = None) -> MonitorReport: ...
def accept_monitor(
    name: str,
    *,
    window: Window | datetime | str | None = None,
    until: datetime | str | None = None,
    note: str = "",
) -> Acceptance: ...
def get_monitors(*, limit: int | None = None, offset: int = 0) -> list[MonitorStatus]: ...
def get_monitor_history(
    name: str, *, limit: int | None = 100, offset: int = 0
) -> list[MonitorReport]: ...
def visualize_monitor(name: str, *, windows: int = 60) -> MonitorPage: ...
def get_metrics() -> str: ...
def add_alert_channel(name: str, uri: str, *, secret: str | None = None) -> Channel: ...
def get_alert_channels() -> list[Channel]: ...
def remove_alert_channel(name: str) -> None: ...
def get_alerts(*, limit: int | None = 100) -> list[Outgoing]: ...
def send_alerts() -> int: ...
def add_source(
    name: str,
    uri: str,
    *,
    secret: str | None = None,
    options: Mapping[str, object] | None = None,
    description: str = "",
) -> SourceSpec: ...
def get_sources() -> list[SourceSpec]: ...
def check_source(name: str) -> SourceReport: ...
def remove_source(name: str) -> None: ...
def read_source(
    name: str,
    *,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    at: int | datetime | str | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | str | None = None,
    format: Literal["parquet", "csv", "jsonl", "json", "arrow", "webdataset"] | None = None,
    delimiter: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    header: bool | None = None,
    names: str | Sequence[str] | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    null_values: str | Sequence[str] | None = None,
    date_format: str | Mapping[str, str] | None = None,
    timestamp_format: str | Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    skip_rows: int | None = None,
    comment: str | None = None,
    on_bad_rows: Literal["error", "quarantine"] | None = None,
    timestamp_precision: Literal["us"] | None = None,
) -> SourceFrame: ...
def create_external_featuregroup(
    name: str,
    *,
    source: str,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    columns: Sequence[str] | None = None,
    primary_key: str | Sequence[str] = (),
    event_time: str | None = None,
    created_time: str | None = None,
    rename: Mapping[str, str] | str | None = None,
    version: int | None = None,
    ttl: timedelta | str | None = None,
    description: str = "",
    descriptions: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    expectations: object = None,
    snapshots: Literal["training", "never"] = "training",
    if_exists: Literal["version", "error", "return"] = "version",
) -> FeatureGroup: ...
def register_in(
    source: str, *, featuregroups: str | Sequence[str] | None = None, schema: str = "featurestore"
) -> CatalogRegistration: ...
def add_dbt_project(
    manifest: str | os.PathLike[str],
    *,
    source: str,
    select: str | Sequence[str] | None = None,
    remove: bool = False,
) -> DbtImport: ...
def plan_dbt_project(
    manifest: str | os.PathLike[str], *, source: str, select: str | Sequence[str] | None = None
) -> DbtImport: ...
def write_dbt_exposures(
    path: str | os.PathLike[str], *, owner: str = "featurestore"
) -> list[str]: ...
def add_online_store(name: str, uri: str, *, secret: str | None = None) -> OnlineStoreSpec: ...
def get_online_stores() -> list[OnlineStoreSpec]: ...
def remove_online_store(name: str) -> None: ...
def purge_online_store(name: str | None = None, *, dry_run: bool = False) -> PurgeReport: ...
def plan(folder: str | os.PathLike[str], *, project: str | None = None) -> ProjectPlan: ...
def apply(
    folder: str | os.PathLike[str], *, project: str | None = None, remove: bool = False
) -> ProjectPlan: ...
def erase(
    subject: Mapping[str, object] | Sequence[Mapping[str, object]],
    *,
    columns: Mapping[str, str] | None = None,
    datasets: Literal["export", "keep"] = "export",
    dry_run: bool = True,
) -> ErasureReport: ...
def verify_erasure(certificate: Mapping[str, object] | str | bytes) -> ErasureCheck: ...
