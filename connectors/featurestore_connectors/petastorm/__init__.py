"""Training datasets for petastorm: Parquet files with petastorm metadata."""

from featurestore_connectors.petastorm.format import (
    ROW_GROUPS_PER_SHARD,
    WHOLE_POOL,
    PetastormFormat,
    row_groups_per_shard,
)

__all__ = ["ROW_GROUPS_PER_SHARD", "WHOLE_POOL", "PetastormFormat", "row_groups_per_shard"]
