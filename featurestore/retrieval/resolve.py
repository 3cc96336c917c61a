"""Resolution of feature references to group columns, and of ``join_key=`` to key columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.cell_casts import Target
from featurestore.arrow.conversions import cast_values
from featurestore.arrow.hints import cast_hint
from featurestore.arrow.types import can_be_key, is_exact
from featurestore.arrow.values import ConversionError, to_value
from featurestore.errors import (
    AmbiguousFeature,
    FeatureGroupNotFound,
    FeatureNotFound,
    InvalidArgument,
    InvalidReference,
    NoJoinKey,
    SchemaMismatch,
    did_you_mean,
    find_similar_names,
    listing,
    suggestion_question,
)
from featurestore.model.arguments import check_version
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.names import FeatureReference, parse_reference, suggest_group
from featurestore.model.requests import JoinKey, Keys
from featurestore.model.runtime import iterate_within_limit

Pairs = tuple[tuple[str, str], ...]
# All groups of a store: name -> version -> definition.
Specs = Mapping[str, Mapping[int, FeatureGroupSpec]]


@dataclass(frozen=True)
class Feature:
    """A requested feature: a column of the group ``spec``, and its output name ``name``."""

    spec: FeatureGroupSpec
    column: str
    name: str

    @property
    def group(self) -> tuple[str, int]:
        """The name and version of the group."""
        return self.spec.name, self.spec.version

    def __str__(self) -> str:
        return f"{self.spec.name}@v{self.spec.version}.{self.column}"


def resolve(
    references: str | Sequence[str],
    *,
    specs: Specs,
    versions: Mapping[str, int] | None = None,
    groups_with: Callable[[str], Iterable[str]] | None = None,
) -> tuple[Feature, ...]:
    """Resolve references to features, in the requested order.

    A plain name is searched in the latest version of every group: first among features, then among
    keys and times. ``groups_with`` returns the groups that may have a column, so that other groups
    are not loaded.

    Raises:
        FeatureNotFound: The feature does not exist; the hint suggests similar names.
        AmbiguousFeature: A plain name is in several groups; the message lists full references.
        FeatureGroupNotFound: The group or version does not exist; the message lists available ones.
    """
    if isinstance(references, str):
        reference_texts = [references]
    else:
        reference_texts = list(references)
    if not reference_texts:
        raise no_features_error()
    pinned = dict(versions or {})
    # All entries are checked, including groups without a requested feature: a typing error must not
    # be ignored.
    for group, version in pinned.items():
        number = check_version(version, argument=f"versions[{group!r}]")
        find_spec(group, version=number, specs=specs)
    matches: list[Feature] = []
    # A server limits the duration of a request, which may contain many references.
    for text in iterate_within_limit(reference_texts):
        reference = parse_reference(text)
        if reference.group is None:
            candidates: Iterable[str] = specs
            if groups_with is not None:
                candidates = groups_with(reference.feature)
            matches.append(_find_by_plain_name(reference, candidates, specs=specs, pinned=pinned))
        else:
            matches += _find_in_group(reference, reference.group, specs=specs, pinned=pinned)
    return tuple(matches)


def no_features_error() -> InvalidReference:
    """Return the error for a retrieval without features."""
    return InvalidReference(
        "No features were requested.", hint="get_features(['group.feature', 'group.*'])"
    )


def find_spec(
    name: str, *, version: int | None, specs: Specs, feature: str | None = None
) -> FeatureGroupSpec:
    """Find the definition of a group; the default is its current version, mostly the latest.

    ``feature`` is the requested feature, if any, for the hint.
    """
    if name not in specs:
        # A group that did not exist at as_of= has a clearer error than an unknown name.
        explain = getattr(specs, "not_yet_created_error", None)
        if explain is not None and explain(name) is not None:
            raise explain(name)
        _check_registered(name, version, specs)
        raise FeatureGroupNotFound(
            f"Unknown feature group {name!r}. Available: {listing(sorted(specs))}.",
            hint=suggest_group(name, specs, feature=feature),
        )
    specs_by_version = specs[name]
    wanted_version = version
    if wanted_version is None:
        current_versions: Mapping[str, int] = getattr(specs, "current_versions", {})
        wanted_version = current_versions.get(name, max(specs_by_version))
    if wanted_version not in specs_by_version:
        _check_registered(name, wanted_version, specs)
        raise FeatureGroupNotFound(
            f"Feature group {name!r} has no version {wanted_version}. "
            f"Available: {listing(sorted(specs_by_version))}.",
            hint=f"{name}@v{max(specs_by_version)}",
        )
    return specs_by_version[wanted_version]


def _check_registered(name: str, version: int | None, specs: Specs) -> None:
    """Raise the error for a group whose table exists, but is missing in the registry."""
    find_error = getattr(specs, "unregistered_error", None)
    error = None if find_error is None else find_error(name, version)
    if error is not None:
        raise error


def _find_in_group(
    reference: FeatureReference, group: str, *, specs: Specs, pinned: Mapping[str, int]
) -> list[Feature]:
    """Resolve a reference that names its group."""
    if reference.version is not None and pinned.get(group, reference.version) != reference.version:
        raise InvalidArgument(
            f"{str(reference)!r} has version {reference.version}, but versions= has "
            f"{pinned[group]}.",
            hint="specify the version once",
        )
    version = reference.version
    if version is None:
        version = pinned.get(group)
    spec = find_spec(group, version=version, specs=specs, feature=reference.feature)
    if reference.is_star:
        if not spec.features:
            raise FeatureNotFound(
                f"Feature group {spec.name!r} has only keys and times: "
                f"{listing(spec.schema.names)}.",
                hint="request a key by name, for example "
                + repr(f"{spec.name}.{spec.schema.names[0]}"),
            )
        return [Feature(spec, column, column) for column in spec.features]
    if reference.feature not in spec.schema.names:
        raise FeatureNotFound(
            f"Feature group {spec.name!r} version {spec.version} has no feature "
            f"{reference.feature!r}. Available: {listing(spec.schema.names, limit=20)}.",
            hint=_suggest_other_group(reference.feature, spec, specs)
            or did_you_mean(reference.feature, spec.schema.names, write=f"'{spec.name}.{{}}'"),
        )
    return [Feature(spec, reference.feature, reference.name)]


def _find_by_plain_name(
    reference: FeatureReference,
    candidates: Iterable[str],
    *,
    specs: Specs,
    pinned: Mapping[str, int],
) -> Feature:
    """Find the only group that has a feature, or else a key or time, of this name."""
    name = reference.feature
    as_feature, as_column = [], []
    for group in sorted(candidates):
        if group in specs:
            spec = find_spec(group, version=pinned.get(group), specs=specs)
            if name in spec.features:
                as_feature.append(spec)
            if name in spec.schema.names:
                as_column.append(spec)
    # Features take precedence, because many groups have the same keys and times.
    matching_specs = as_feature or as_column
    if not matching_specs:
        raise _unknown_feature_error(name, specs=specs, pinned=pinned)
    if len(matching_specs) > 1:
        candidates = [f"{spec.name}.{name}" for spec in matching_specs]
        raise AmbiguousFeature(
            f"{name!r} is in {len(matching_specs)} feature groups: {listing(candidates, limit=30)}.",
            hint=f"request one reference, for example {candidates[0]!r}",
        )
    return Feature(matching_specs[0], name, reference.name)


def _unknown_feature_error(
    name: str, *, specs: Specs, pinned: Mapping[str, int]
) -> FeatureNotFound:
    groups = sorted(specs)
    # The registry lists the names of features, so that not all definitions are loaded.
    list_features = getattr(specs, "list_features", None)
    if list_features is None:
        loaded_groups, listed_features = groups, []
    else:
        loaded_groups = sorted(pinned)
        listed_features = [feature for feature in list_features() if feature[0] not in pinned]
    for group in loaded_groups:
        spec = find_spec(group, version=pinned.get(group), specs=specs)
        listed_features += [(spec.name, column) for column in spec.features]
    columns_by_reference = {
        f"{group}.{column}": column
        for group, column in sorted(listed_features, key=lambda feature: feature[0])
    }
    searched = f"{len(groups)} feature groups"
    if len(groups) == 1:
        searched = "1 feature group"
    return FeatureNotFound(
        f"No feature {name!r} in {searched}.",
        hint=_suggest_features(name, columns_by_reference),
    )


def _suggest_other_group(column: str, spec: FeatureGroupSpec, specs: Specs) -> str | None:
    """Return a hint if other groups have the column, else None."""
    groups_with = getattr(specs, "groups_with", None)
    references = [
        f"{group}.{column}"
        for group in sorted(specs if groups_with is None else groups_with(column))
        if group != spec.name and column in find_spec(group, version=None, specs=specs).features
    ]
    if not references:
        return None
    return f"another feature group has it: {' or '.join(map(repr, references[:5]))}"


def _suggest_features(name: str, columns_by_reference: Mapping[str, str]) -> str:
    similar_columns = [
        column.lower()
        for column in find_similar_names(name, sorted(set(columns_by_reference.values())))
    ]
    similar_references = [
        repr(reference)
        for reference, column in columns_by_reference.items()
        if column.lower() in similar_columns
    ]
    if similar_references:
        return suggestion_question(similar_references[:5])
    return "get_features_list() lists all features, search(text) searches them"


def join_keys_by_group(
    join_key: JoinKey | None, *, label_schema: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> dict[tuple[str, int], Keys | None]:
    """Return the ``join_key=`` entry of each group.

    Raises:
        InvalidArgument: ``join_key=`` names neither left columns nor joined groups.
    """
    if not isinstance(join_key, Mapping):
        return dict.fromkeys([(spec.name, spec.version) for spec in groups], join_key)
    by_group, columns = _split_by_group(join_key, label_schema=label_schema, groups=groups)
    _check_columns(columns, label_schema=label_schema, groups=groups)
    keys_by_group: dict[tuple[str, int], Keys | None] = {}
    for spec in groups:
        joinable_columns = _joinable_columns(spec)
        shared = {column: key for column, key in columns.items() if key in joinable_columns}
        group_keys: Keys | None = shared or None
        # The entry of a version takes precedence over the entry of its group.
        for name in (spec.name, f"{spec.name}@v{spec.version}"):
            group_keys = by_group.get(name, group_keys)
        keys_by_group.setdefault((spec.name, spec.version), group_keys)
    return keys_by_group


def _split_by_group(
    join_key: Mapping[str, Any], *, label_schema: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> tuple[dict[str, Keys], dict[str, Any]]:
    """Split ``join_key=`` into its entries for groups and its entries for label columns."""
    group_names: set[str] = set()
    for spec in groups:
        group_names |= {spec.name, f"{spec.name}@v{spec.version}"}
    by_group: dict[str, Keys] = {}
    columns: dict[str, Any] = {}
    for name, value in join_key.items():
        # If a left column has the name of a group, {name: key} refers to the column.
        is_column = isinstance(value, str) and name in label_schema.names
        if name in group_names and not is_column:
            by_group[name] = value
        else:
            columns[name] = value
    return by_group, columns


def _check_columns(
    columns: Mapping[str, Any], *, label_schema: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> None:
    joinable_columns: set[str] = set()
    for spec in groups:
        joinable_columns.update(_joinable_columns(spec))
    unknown, unused = [], []
    for name, key in columns.items():
        if name not in label_schema.names or not isinstance(key, str):
            unknown.append(name)
        elif key not in joinable_columns:
            unused.append(f"{name}: {key}")
    if unknown:
        raise InvalidArgument(
            f"Unknown names in join_key: {listing(unknown)}. Columns of the left side: "
            f"{listing(label_schema.names)}; joined feature groups: "
            f"{listing([spec.name for spec in groups])}.",
            hint="join_key={'label column': 'key column'} or {'group': {'label column': 'key "
            "column'}}",
        )
    if unused:
        raise NoJoinKey(
            f"join_key has {listing(unused)}, but no joined feature group has this key. "
            f"{describe_keys(groups)}"
        )


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


def key_pairs(
    spec: FeatureGroupSpec,
    *,
    label_schema: pa.Schema,
    join_key: Keys | None,
    groups: Sequence[FeatureGroupSpec] = (),
    peek: Callable[[], pa.Table] | None = None,
) -> Pairs:
    """Return a (label column, key column) pair for every primary-key column of a group.

    A group without a primary key is joined on the columns that ``join_key=`` names. ``groups`` are
    all joined groups, whose keys the error lists. ``peek`` returns the first labels, for the hint;
    it is None if the labels are rows of the store.

    Raises:
        NoJoinKey: A key column has no label column, or their types are not comparable.
    """
    columns_by_key = _columns_by_key(spec, label_schema=label_schema, join_key=join_key)
    if not spec.primary_key and not columns_by_key:
        raise NoJoinKey(
            f"Feature group {spec.name!r} declares no primary key. Columns of the left side: "
            f"{listing(label_schema.names, limit=30)}; columns of the group: "
            f"{listing(spec.schema.names, limit=30)}.",
            hint=f"join_key={{{spec.name!r}: 'column'}} joins on a column that both have",
        )
    column_pairs = []
    for key in spec.primary_key or tuple(columns_by_key):
        column = columns_by_key.get(key, key)
        if column not in label_schema.names:
            # Only the same name in another spelling: a join on another column is silently wrong.
            same = [name for name in label_schema.names if _fold(name) == _fold(column)]
            left_column = same[0] if same else "your column"
            raise NoJoinKey(
                f"Feature group {spec.name!r} is joined on {listing(spec.primary_key)}, but the "
                f"left side has no column {column!r}. Available: "
                f"{listing(label_schema.names, limit=30)}. {describe_keys(groups or [spec])}.",
                hint=f"join_key={{{spec.name!r}: {{{left_column!r}: {key!r}}}}}",
            )
        _check_comparable(spec, key=key, label_field=label_schema.field(column), peek=peek)
        column_pairs.append((column, key))
    return tuple(column_pairs)


def describe_keys(groups: Sequence[FeatureGroupSpec]) -> str:
    """Describe the primary key of each group in a sentence."""
    keys = [
        f"{spec.name}@v{spec.version} ({', '.join(spec.primary_key) or 'none'})" for spec in groups
    ]
    return f"Keys: {'; '.join(keys)}"


def are_comparable(first: pa.DataType, second: pa.DataType) -> bool:
    """Return whether values of two types can be compared without a lossy conversion.

    Integers and decimals compare by value. Untyped nulls equal no key.

    >>> are_comparable(pa.decimal128(2, 1), pa.decimal128(4, 2)), are_comparable(pa.float64(), pa.int64())
    (True, False)
    """
    return bool(first == second) or pat.is_null(first) or (is_exact(first) and is_exact(second))


def equal_key(value: Any, key_type: pa.DataType) -> Any:
    """Return the value of a key column that equals a value in a join, or None if no value does.

    The types must be comparable. Integers and decimals compare by value, so the key has the same
    number; a number that the key type cannot represent equals no key. Null equals no key.

    >>> from decimal import Decimal
    >>> equal_key(Decimal("5.00"), pa.int64()), equal_key(300, pa.int8())
    (5, None)
    """
    # Arrow infers no type of larger integers.
    if type(value) is int and not -(2**63) <= value < 2**64:
        value = Decimal(value)
    try:
        return to_value(value, key_type)
    except ConversionError:
        return None


def is_whole_number(value: Any) -> bool:
    """Return whether a value is a number without fraction, so that it could be a key.

    Without an equal in the type of a key column, such a number equals no key; other values without
    an equal are mistyped.

    >>> is_whole_number(2**80), is_whole_number(300.0), is_whole_number(1.5), is_whole_number(True)
    (True, True, False, False)
    """
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    # numpy's durations are integers for isinstance.
    if isinstance(value, bool | np.timedelta64):
        return False
    if isinstance(value, float | np.floating):
        return float(value).is_integer()
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, int | np.integer)


def join_key_types(
    label_schema: pa.Schema, groups: Sequence[FeatureGroupSpec], join_key: JoinKey | None
) -> dict[str, tuple[pa.DataType, ...]]:
    """Return the types of the key columns with which each label column is joined.

    Raises:
        NoJoinKey: A key column has no label column.
    """
    # Untyped columns are comparable with every key, so that only missing columns raise an error
    # here.
    untyped_schema = pa.schema([pa.field(name, pa.null()) for name in label_schema.names])
    keys_by_group = join_keys_by_group(join_key, label_schema=untyped_schema, groups=groups)
    types: dict[str, dict[pa.DataType, None]] = {}
    for spec in groups:
        keys = keys_by_group[spec.name, spec.version]
        for column, key in key_pairs(
            spec, label_schema=untyped_schema, join_key=keys, groups=groups
        ):
            types.setdefault(column, {})[spec.schema.field(key).type] = None
    return {column: tuple(key_types) for column, key_types in types.items()}


def _columns_by_key(
    spec: FeatureGroupSpec, *, label_schema: pa.Schema, join_key: Keys | None
) -> dict[str, str]:
    """Return {key column: label column} for the columns that ``join_key=`` names."""
    if join_key is None:
        return {}
    joinable_columns = _joinable_columns(spec)
    if isinstance(join_key, Mapping):
        columns_by_key: dict[str, Any] = dict(zip(join_key.values(), join_key.keys(), strict=True))
        # Two label columns for one key column would silently lose one of them.
        if len(columns_by_key) != len(join_key) or not set(columns_by_key) <= set(joinable_columns):
            raise NoJoinKey(
                f"join_key={dict(join_key)!r} does not match feature group {spec.name!r}, "
                f"whose key is {listing(spec.primary_key)}.",
                hint="pass {'label column': 'key column'}",
            )
        return columns_by_key
    if isinstance(join_key, str):
        names = [join_key]
    else:
        names = list(join_key)
    keys, unknown_keys = [], []
    for name in names:
        if name in joinable_columns:
            keys.append(name)
        else:
            unknown_keys.append(name)
    # A single name that is not a key column is the label column of the only key.
    if unknown_keys and len(names) == len(spec.primary_key) == 1 and names[0] in label_schema.names:
        return {spec.primary_key[0]: names[0]}
    unknown_columns = [name for name in unknown_keys if name not in label_schema.names]
    if unknown_columns:
        raise NoJoinKey(
            f"Unknown names in join_key: {listing(unknown_keys)}. {describe_keys([spec])}. Columns "
            f"of the left side: {listing(label_schema.names, limit=30)}.",
        )
    return dict(zip(keys, keys, strict=True))


def _joinable_columns(spec: FeatureGroupSpec) -> Sequence[str]:
    return spec.primary_key or tuple(spec.schema.names)


def _check_comparable(
    spec: FeatureGroupSpec, *, key: str, label_field: pa.Field, peek: Callable[[], pa.Table] | None
) -> None:
    """Raise NoJoinKey if a label column cannot be compared with a key column."""
    key_type = spec.schema.field(key).type
    if not can_be_key(key_type):
        raise NoJoinKey(
            f"The column {key!r} of feature group {spec.name!r} is {key_type}, which cannot be a key.",
            hint="keys are integers, strings, booleans, dates, timestamps, decimals or binary",
        )
    if are_comparable(label_field.type, key_type):
        return
    raise NoJoinKey(
        f"The key {key!r} of feature group {spec.name!r} is {key_type}, but the left column "
        f"{label_field.name!r} is {label_field.type}.",
        hint=_key_hint(label_field.name, key_type, peek),
    )


def _key_hint(column: str, key_type: pa.DataType, peek: Callable[[], pa.Table] | None) -> str:
    """Return the line that casts the labels; keys without an equal in the group match no row."""
    if peek is None:
        return f"convert the column {column!r} to {key_type} first"
    labels = peek()[column]
    # A client sends no rows with the request for a schema, so they may have no equal key.
    is_exact_cast = len(labels) > 0
    try:
        cast_values(labels, Target(key_type), name=column)
    except SchemaMismatch:
        is_exact_cast = False
    return cast_hint({column: key_type}, inexact="" if is_exact_cast else "null")
