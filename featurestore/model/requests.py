"""What a caller asks for, frozen: the arguments of the big calls, built once at the facade and handed down whole.

A request holds what was given and nothing else: defaults are those of the call, nothing is checked yet. The package that
serves it checks it against what there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from featurestore.model.splits import TimeSplit


@dataclass(frozen=True, kw_only=True)
class TrainingDatasetRequest:
    """The arguments of ``FeatureStore.create_training_dataset`` beside the data and who watches."""

    name: str
    label: str | Sequence[str] | None = None
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
    description: str = ""
    tags: Mapping[str, str] | None = None
    expectations: object = None
    validation: str = "strict"
    statistics: bool = True
