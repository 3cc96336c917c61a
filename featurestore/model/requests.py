"""Requests: frozen arguments of public calls.

The arguments of the big calls, built once at the facade and handed down whole.

A request holds what was given and nothing else: defaults are those of the call, nothing is checked
yet. The package that serves it checks it against what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from featurestore.model.job import Closed, JobMode, OnError
from featurestore.model.source import SourceInput
from featurestore.model.splits import TimeSplit


@dataclass(frozen=True, kw_only=True)
class TrainingDatasetRequest:
    """The arguments of ``FeatureStore.create_training_dataset`` without data and progress callback."""

    name: str
    label: str | Sequence[str] | None = None
    features: str | Sequence[str] | None = None
    exclude: str | Sequence[str] | None = None
    weight: str | None = None
    data_format: str = "tfrecord"
    splits: Mapping[str, float] | TimeSplit | None = None
    split_by: str | Sequence[str] | None = None
    stratify: str | Sequence[str] | None = None
    seed: int = 0
    key: str | Sequence[str] | None = None
    shards: int | None = None
    rows_per_shard: int | None = None
    block_rows: int | None = None
    version: int | None = None
    compression: str | None = None
    max_lengths: Mapping[str, int] | None = None
    description: str = ""
    tags: Mapping[str, str] | None = None
    expectations: object = None
    validation: str = "strict"
    statistics: bool = True
    transformations: Mapping[str, Any] | None = None
    fit_on: str = "train"


@dataclass(frozen=True, kw_only=True)
class FeatureJobRequest:
    """The arguments of ``featurestore.job`` and ``featurestore.sql_job``, which describes them."""

    featuregroup: str
    schedule: str
    name: str
    inputs: Mapping[str, str | SourceInput] | None = None
    primary_key: str | Sequence[str] = ()
    event_time: str | None = None
    created_time: str | None = None
    partition_by: str | Sequence[str] = ()
    window: timedelta | str | None = None
    start: datetime | str | None = None
    lookback: timedelta | str | None = None
    allowed_lateness: timedelta | str = "0s"
    timezone: str = "UTC"
    closed: Closed = "right"
    mode: JobMode = "replace_window"
    validation: str = "strict"
    ttl: timedelta | str | None = None
    expectations: Sequence[Mapping[str, Any]] = ()
    statistics: bool = True
    compact: str | None = "auto"
    description: str = ""
    tags: Mapping[str, str] | None = None
    input_times: Mapping[str, str] | None = None
    retries: int = 2
    catchup: int | None = None
    on_error: OnError = "continue"
    on_failure: str | None = None
    alert: str | Sequence[str] = ()
    tombstone: str | None = None
    delete_missing: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingJobRequest:
    """The arguments of ``featurestore.training_job``, which describes them."""

    training_dataset: str
    schedule: str
    name: str
    inputs: Mapping[str, str] | None = None
    start: datetime | str | None = None
    allowed_lateness: timedelta | str = "0s"
    timezone: str = "UTC"
    description: str = ""
    tags: Mapping[str, str] | None = None
    retries: int = 2
    on_failure: str | None = None
    keep: int | None = None
    alert: str | Sequence[str] = ()
