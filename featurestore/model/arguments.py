"""Suggestions for unknown arguments of public calls, and range checks of counts.

The aliases are argument names of other feature stores and readers.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from featurestore.errors import UnknownArgument, did_you_mean, listing
from featurestore.model.counts import COUNTS, check_counts

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)

# Argument names of other libraries and their equivalents; the first that the call accepts is used.
ALIASES: Mapping[str, tuple[str, ...]] = {
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
# Argument names without an equivalent, and what to do instead.
REPLACEMENTS: Mapping[str, str] = {
    "online": "there is one store for all uses; the latest values now: "
    "get_features(features, labels=[{...}], label_time=datetime.now(UTC))",
    "featurestore": "a store is a location: featurestore.connect(location), then its methods",
    "petastorm_args": "data_format='petastorm' alone writes the dataset; shards=, rows_per_shard= "
    "and compression= say how, and reading options go to dataset.petastorm_reader(...)",
}


def with_suggestions(function: F) -> F:
    """Return a function that suggests the right argument in place of a TypeError."""
    positions = _count_positions(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, position in positions.items():
            if name in kwargs:
                check_counts({name: kwargs[name]})
            elif position is not None and position < len(args):
                check_counts({name: args[position]})
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Only an error of the call itself has no frame below this one.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise _argument_error(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def _count_positions(function: Callable[..., Any]) -> dict[str, int | None]:
    """Return the positions of arguments that are counts; None for keyword-only arguments.

    ``before=`` is a version in one call and a table in another: the annotation decides.
    """
    positions: dict[str, int | None] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in COUNTS and re.search(r"\bint\b", str(parameter.annotation)):
            is_positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            positions[parameter.name] = position if is_positional else None
    return positions


def suggest_arguments(owner: T) -> T:
    """Decorate the public methods of a class with argument suggestions."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(owner, name, with_suggestions(member))
        elif isinstance(member, classmethod):
            setattr(owner, name, classmethod(with_suggestions(member.__func__)))
    return owner


def _argument_error(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> UnknownArgument:
    """Return the error for a call whose arguments do not match the signature."""
    parameters = dict(inspect.signature(function).parameters)
    for receiver in ("self", "cls"):
        if receiver in parameters:
            del parameters[receiver]
            args = args[1:]
    name = function.__name__
    positional, keyword = [], []
    for each in parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            keyword.append(each.name)
        else:
            positional.append(each.name)
    accepted_names = [*positional, *keyword]
    unknown = [each for each in kwargs if each not in accepted_names]
    if unknown:
        suggestions = [_suggestion(each, accepted_names) for each in unknown]
        return UnknownArgument(
            f"{name}() takes no {listing(unknown)}.", hint="; ".join(dict.fromkeys(suggestions))
        )
    if len(args) > len(positional):
        return _too_many(name, args, positional, keyword)
    missing_names = []
    for each in parameters.values():
        is_passed = each.name in kwargs or each.name in positional[: len(args)]
        if each.default is inspect.Parameter.empty and not is_passed:
            missing_names.append(each.name)
    if missing_names:
        return UnknownArgument(
            f"{name}() needs {listing(missing_names)}.",
            hint=f"{name}({_signature_text(positional, keyword)})",
        )
    return UnknownArgument(f"{name}() got an argument twice: {error}.")


def _suggestion(name: str, accepted_names: Sequence[str]) -> str:
    """Return the replacement of an unknown argument."""
    if name in REPLACEMENTS:
        return f"{name}: {REPLACEMENTS[name]}"
    for alias in ALIASES.get(name, ()):
        if alias in accepted_names:
            return f"{name} is {alias}= here"
    return (
        did_you_mean(name, accepted_names, write="{}=", most=1)
        or f"it takes {listing(accepted_names, limit=40)}"
    )


def _too_many(
    name: str, args: Sequence[Any], positional: Sequence[str], keyword: Sequence[str]
) -> UnknownArgument:
    """Return the error for too many positional arguments."""
    accepted = listing(positional)
    if not positional:
        accepted = "no argument"
    hint = "it takes no others"
    if keyword:
        examples = [f"{word}=..." for word in keyword[: len(args) - len(positional)]]
        hint = f"name the others, for example {', '.join(examples)}; it has {listing(keyword, limit=40)}"
    return UnknownArgument(f"{name}() takes {accepted} without a name, not {len(args)}.", hint=hint)


def _signature_text(positional: Sequence[str], keyword: Sequence[str]) -> str:
    shown = list(positional)
    if keyword:
        shown.append("...")
    return ", ".join(shown)
