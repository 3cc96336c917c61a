"""Suggestions for wrong arguments: words of other libraries, and the errors of calls.

Argument names of other libraries, and values of arguments, have equivalents in this library. Values of
the same meaning are accepted, others are suggested in the hint of the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from featurestore.errors import UnknownArgument, did_you_mean, listing

# The members of a FeatureFrame that completion and hints list.
FRAME_MEMBERS = (
    "columns", "count", "coverage", "drop", "filter", "head", "sample", "schema", "select", "show",
    "to_arrow", "to_batches", "to_numpy", "to_pandas", "to_polars", "to_spark",
)  # fmt: skip

# Examples of arguments that are dicts.
DICT_EXAMPLES = {
    "environment": "{'OMP_NUM_THREADS': '2'}",
    "input_times": "{'trips': 'left_at'}",
    "inputs": "{'trips': 'trips'}",
    "metrics": "{'late_share': 'avg(late)'}",
    "storage_options": "{'aws_region': 'eu-central-1'}",
    "tags": "{'team': 'traffic'}",
    "versions": "{'weather': 1}",
}

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


def argument_error(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> UnknownArgument:
    """Return the error for call arguments that do not match the signature."""
    parameters = dict(inspect.signature(function).parameters)
    for receiver in ("self", "cls"):
        if receiver in parameters:
            del parameters[receiver]
            # The first argument of a method is its object, which the caller does not write.
            args = args[1:]
    name = function.__name__
    positional, keyword = [], []
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keyword.append(parameter.name)
        else:
            positional.append(parameter.name)
    accepted_names = [*positional, *keyword]
    unknown = [parameter for parameter in kwargs if parameter not in accepted_names]
    if unknown:
        suggestions = [_suggest_replacement(parameter, accepted_names) for parameter in unknown]
        return UnknownArgument(
            f"{name}() has no argument {listing(unknown)}.",
            hint="; ".join(dict.fromkeys(suggestions)),
        )
    if len(args) > len(positional):
        return _too_many_arguments_error(name, args, positional, keyword)
    missing_names = []
    for parameter in parameters.values():
        is_passed = parameter.name in kwargs or parameter.name in positional[: len(args)]
        if parameter.default is inspect.Parameter.empty and not is_passed:
            missing_names.append(parameter.name)
    if missing_names:
        required = [f"{missing}=..." for missing in missing_names if missing in keyword]
        more = required or (["..."] if keyword else [])
        return UnknownArgument(
            f"{name}() needs {listing(missing_names)}.",
            hint=f"{name}({', '.join([*positional, *more])})",
        )
    # Python's message names the argument.
    return UnknownArgument(f"{name}() got an argument twice: {error}.")


def _suggest_replacement(name: str, accepted_names: Sequence[str]) -> str:
    """Return the suggested replacement for an unknown argument."""
    if name in REPLACEMENTS:
        return f"{name}: {REPLACEMENTS[name]}"
    for alias in ALIASES.get(name, ()):
        if alias in accepted_names:
            return f"use {alias}= instead of {name}="
    return (
        did_you_mean(name, accepted_names, write="{}=", most=1)
        or f"available arguments: {listing(accepted_names, limit=40)}"
    )


def _too_many_arguments_error(
    name: str, args: Sequence[Any], positional: Sequence[str], keyword: Sequence[str]
) -> UnknownArgument:
    """Return the error for too many positional arguments."""
    hint = "it has no other arguments"
    if keyword:
        examples = [f"{word}=..." for word in keyword[: len(args) - len(positional)]]
        hint = (
            f"pass other arguments by name, for example {', '.join(examples)}; "
            f"available: {listing(keyword, limit=40)}"
        )
    return UnknownArgument(
        f"{name}() got {len(args)} positional arguments. Allowed: {listing(positional)}.", hint=hint
    )


def short_repr(value: object) -> str:
    """Return the representation of a value on one line, with at most 80 characters."""
    # Python refuses to format integers of more than 4,300 digits.
    if isinstance(value, int) and abs(value) > 10**40:
        return f"<an integer of {value.bit_length()} bits>"
    return " ".join(repr(value).split())[:80]


def missing_member_error(owner: object, name: str, frame: str) -> AttributeError:
    """Return the error for an unknown attribute; ``frame`` is the call that returns the rows."""
    hint = f"\nHint: {frame}.{name}" if name in FRAME_MEMBERS else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}")
