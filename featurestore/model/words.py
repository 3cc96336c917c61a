"""Words of other libraries: argument names, and values of arguments, with their equivalents here.

Values of the same meaning are accepted, others are suggested in the hint of the error.
"""

from __future__ import annotations

from collections.abc import Mapping

# Argument names of other libraries and their equivalents; the first equivalent that the call
# accepts is suggested.
ALIASES: Mapping[str, tuple[str, ...]] = {
    # Names in hops.featurestore.
    "featuregroup_version": ("version",),
    "training_dataset_version": ("version",),
    "featuregroups_version_dict": ("versions",),
    "featuregroup": ("name", "features"),
    "featuregroup_name": ("name", "features"),
    "training_dataset": ("name",),
    "training_dataset_name": ("name",),
    "descriptive_statistics": ("statistics",),
    "feature_correlation": ("statistics",),
    "feature_histograms": ("statistics",),
    "cluster_analysis": ("statistics",),
    "stat_columns": ("statistics",),
    "corr_method": ("method",),
    # Names in Feast, Databricks and similar libraries.
    "entity_df": ("labels",),
    "entity_rows": ("labels",),
    "spine": ("labels",),
    "label_columns": ("label",),
    "primary_keys": ("primary_key", "join_key"),
    "join_keys": ("primary_key", "join_key"),
    "entities": ("primary_key", "join_key"),
    "lookup_key": ("join_key",),
    "timestamp_lookup_key": ("label_time",),
    "event_timestamp": ("event_time", "label_time"),
    "timestamp_field": ("event_time",),
    "timestamp_keys": ("event_time",),
    "timeseries_columns": ("event_time",),
    "created_timestamp_column": ("created_time",),
    "partition_columns": ("partition_by",),
    "partition_key": ("partition_by",),
    "feature_refs": ("features",),
    "feature_names": ("features",),
    "feature_lookups": ("features",),
    "dataframe": ("df", "data"),
    "where_clause": ("where",),
    "batch_size": ("global_batch_size",),
    # Names in petastorm.
    "cur_shard": ("worker", "rank"),
    "shard_count": ("workers", "world_size"),
    "num_epochs": ("epochs",),
    "schema_fields": ("columns",),
    "shuffle_row_groups": ("shuffle",),
    "shard_seed": ("seed",),
    "exclude_columns": ("exclude",),
    "train_test_split": ("splits",),
    "write_mode": ("mode",),
    "overwrite": ("mode",),
}
# Argument names without an equivalent, and the advice for each.
REPLACEMENTS: Mapping[str, str] = {
    "online": "the store has no separate online part; to get the latest values: "
    "get_features(features, labels=[{...}], label_time=datetime.now(UTC))",
    "featurestore": "connect to a store by its location, and call its methods: "
    "featurestore.connect(location)",
    "petastorm_args": "data_format='petastorm' selects the format, shards=, rows_per_shard= and "
    "compression= configure the files; pass reading options to dataset.petastorm_reader(...)",
}
_FUNCTIONS = {
    "avg": "mean",
    "average": "mean",
    "maximum": "max",
    "minimum": "min",
    "nunique": "count_distinct",
    "stddev": "std",
    "stddev_samp": "std",
    "stdev": "std",
    "total": "sum",
    "var_samp": "var",
    "variance": "var",
}
# Values with the same meaning, by the name of the argument. Names of functions with another meaning
# (``stddev_pop``, ``approx_count_distinct``) are not equal.
EQUAL_VALUES: Mapping[str, Mapping[str, str]] = {
    "function": _FUNCTIONS,
    "functions": _FUNCTIONS,
    "direction": {
        "minimize": "min",
        "minimise": "min",
        "minimum": "min",
        "maximize": "max",
        "maximise": "max",
        "maximum": "max",
    },
    "join": {"left_outer": "left", "leftouter": "left"},
    "on_duplicates": {"raise": "error", "keep_last": "last"},
    "dataframe_type": {
        "pd": "pandas",
        "pl": "polars",
        "pa": "arrow",
        "pyarrow": "arrow",
        "np": "numpy",
        "pyspark": "spark",
    },
    "validation": {"raise": "strict", "warning": "warn"},
}
# Values whose meaning is similar: a write mode changes rows, so it is never guessed.
SIMILAR_VALUES: Mapping[str, Mapping[str, str]] = {
    "mode": {
        "replace": "overwrite",
        "w": "overwrite",
        "write": "overwrite",
        "truncate": "overwrite",
        "merge": "upsert",
        "update": "upsert",
        "insert": "append",
        "add": "append",
        "a": "append",
    },
}


def translate(argument: str, value: object) -> object:
    """Return the value of an argument in the words of this library, other values unchanged.

    >>> translate("function", "AVG"), translate("functions", ["avg", "max"]), translate("n", 3)
    ('mean', ['mean', 'max'], 3)
    """
    if isinstance(value, list | tuple):
        return [translate(argument, item) for item in value]
    if not isinstance(value, str):
        return value
    return EQUAL_VALUES.get(argument, {}).get(value.lower(), value)
