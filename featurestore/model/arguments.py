"""Arguments that a call does not take: answered with the one that is meant; counts are judged.

One place for every public call. It knows the words of other feature stores and readers.
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

# Words of others and what stands for them here; the first that the call takes is meant.
OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
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
# Words that have no argument here, and what to do instead.
INSTEAD: Mapping[str, str] = {
    "online": "there is one store for all uses; the latest values now: "
    "get_features(features, labels=[{...}], label_time=datetime.now(UTC))",
    "featurestore": "a store is a location: featurestore.connect(location), then its methods",
    "petastorm_args": "data_format='petastorm' alone writes the dataset; shards=, rows_per_shard= "
    "and compression= say how, and reading options go to dataset.petastorm_reader(...)",
}


def answering(function: F) -> F:
    """Return a public function that answers arguments which it does not take."""
    positions = _positions_of_counts(function)

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
            # An error of the call itself, not of what it ran: no frame lies below this one.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise _refusal(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def _positions_of_counts(function: Callable[..., Any]) -> dict[str, int | None]:
    """Return the arguments of a function that are counts, None where they have no position.

    ``before=`` is a version of one call, and a table of another: the annotation decides.
    """
    positions: dict[str, int | None] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in COUNTS and re.search(r"\bint\b", str(parameter.annotation)):
            is_positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            positions[parameter.name] = position if is_positional else None
    return positions


def answers_calls(owner: T) -> T:
    """Make the public methods of a class answer arguments which they do not take."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(owner, name, answering(member))
        elif isinstance(member, classmethod):
            setattr(owner, name, classmethod(answering(member.__func__)))
    return owner


def _refusal(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> UnknownArgument:
    """Return what is wrong with a call, and the argument to write."""
    parameters = dict(inspect.signature(function).parameters)
    for own in ("self", "cls"):
        if own in parameters:
            del parameters[own]
            args = args[1:]
    name = function.__name__
    positional, keyword = [], []
    for each in parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            keyword.append(each.name)
        else:
            positional.append(each.name)
    known = [*positional, *keyword]
    unknown = [each for each in kwargs if each not in known]
    if unknown:
        hints = [_answer(each, known) for each in unknown]
        return UnknownArgument(
            f"{name}() takes no {listing(unknown)}.", hint="; ".join(dict.fromkeys(hints))
        )
    if len(args) > len(positional):
        return _too_many(name, args, positional, keyword)
    missing = []
    for each in parameters.values():
        is_given = each.name in kwargs or each.name in positional[: len(args)]
        if each.default is inspect.Parameter.empty and not is_given:
            missing.append(each.name)
    if missing:
        return UnknownArgument(
            f"{name}() needs {listing(missing)}.", hint=f"{name}({_shape(positional, keyword)})"
        )
    return UnknownArgument(f"{name}() was given an argument twice: {error}.")


def _answer(word: str, known: Sequence[str]) -> str:
    """Return what to write instead of an argument that a call does not take."""
    if word in INSTEAD:
        return f"{word}: {INSTEAD[word]}"
    for meant in OTHER_WORDS.get(word, ()):
        if meant in known:
            return f"{word} is {meant}= here"
    return did_you_mean(word, known, write="{}=", most=1) or f"it takes {listing(known, limit=40)}"


def _too_many(
    name: str, args: Sequence[Any], positional: Sequence[str], keyword: Sequence[str]
) -> UnknownArgument:
    """Return the error for arguments without a name where the call wants names."""
    taken = listing(positional)
    if not positional:
        taken = "no argument"
    hint = "it takes no others"
    if keyword:
        extra = [f"{word}=..." for word in keyword[: len(args) - len(positional)]]
        hint = (
            f"name the others, for example {', '.join(extra)}; it has {listing(keyword, limit=40)}"
        )
    return UnknownArgument(f"{name}() takes {taken} without a name, not {len(args)}.", hint=hint)


def _shape(positional: Sequence[str], keyword: Sequence[str]) -> str:
    shown = list(positional)
    if keyword:
        shown.append("...")
    return ", ".join(shown)
