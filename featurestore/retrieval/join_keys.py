"""Which left column meets which key column of a group: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, NoJoinKey, listing
from featurestore.model.cast_lines import key_line
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.types import can_be_key, is_exact

Pairs = tuple[tuple[str, str], ...]
Keys = str | Sequence[str] | Mapping[str, str]
JoinKey = Keys | Mapping[str, Keys]


def per_group(
    join_key: JoinKey | None, *, left: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> dict[tuple[str, int], Keys | None]:
    """Return what ``join_key=`` says for each group.

    Raises:
        InvalidArgument: It names neither left columns nor joined groups.
    """
    if not isinstance(join_key, Mapping):
        return dict.fromkeys([(spec.name, spec.version) for spec in groups], join_key)
    by_group, columns = _split(join_key, left=left, groups=groups)
    _check_columns(columns, left=left, groups=groups)
    result: dict[tuple[str, int], Keys | None] = {}
    for spec in groups:
        known = _keys(spec)
        shared = {column: key for column, key in columns.items() if key in known}
        said: Keys | None = shared or None
        for name in (spec.name, f"{spec.name}@v{spec.version}"):
            said = by_group.get(name, said)
        result.setdefault((spec.name, spec.version), said)
    return result


def _split(
    join_key: Mapping[str, Any], *, left: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> tuple[dict[str, Keys], dict[str, Any]]:
    """Return what ``join_key=`` says by group, and what it says of left columns for all groups."""
    names: set[str] = set()
    for spec in groups:
        names |= {spec.name, f"{spec.name}@v{spec.version}"}
    by_group: dict[str, Keys] = {}
    columns: dict[str, Any] = {}
    for name, value in join_key.items():
        # A left column may have the name of a group: then {name: key} is about the column.
        is_column = isinstance(value, str) and name in left.names
        if name in names and not is_column:
            by_group[name] = value
        else:
            columns[name] = value
    return by_group, columns


def _check_columns(
    columns: Mapping[str, Any], *, left: pa.Schema, groups: Sequence[FeatureGroupSpec]
) -> None:
    keys: set[str] = set()
    for spec in groups:
        keys.update(_keys(spec))
    unknown, unused = [], []
    for name, key in columns.items():
        if name not in left.names or not isinstance(key, str):
            unknown.append(name)
        elif key not in keys:
            unused.append(f"{name}: {key}")
    if unknown:
        raise InvalidArgument(
            f"join_key names {listing(unknown)}: neither a column of the left side "
            f"({listing(left.names)}) "
            f"nor a joined group ({listing([spec.name for spec in groups])}).",
            hint="join_key={'label column': 'key column'} or {'group': {'label column': 'key "
            "column'}}",
        )
    if unused:
        raise NoJoinKey(
            f"join_key has {listing(unused)}, which is a key of no joined group. "
            f"{show_keys(groups)}"
        )


def pairs(
    spec: FeatureGroupSpec,
    *,
    left: pa.Schema,
    said: Keys | None,
    groups: Sequence[FeatureGroupSpec] = (),
    library: str | None = None,
) -> Pairs:
    """Return (left column, key column) for every primary-key column of a group.

    A group without a primary key is joined on the columns that ``join_key=`` names. ``groups`` are
    all that are joined: a refusal shows the key of each. ``library`` is the kind of dataframe that
    the left side is (``column_lines.language_of``), whose words the hint uses; None for a group.

    Raises:
        NoJoinKey: A key column has no partner on the left side, or the partners' types do not
        compare.
    """
    chosen = _named(spec, left=left, said=said)
    if not spec.primary_key and not chosen:
        raise NoJoinKey(
            f"Feature group {spec.name!r} declares no primary key. The left side has "
            f"{listing(left.names, limit=30)}, "
            f"the group {listing(spec.schema.names, limit=30)}.",
            hint=f"join_key={{{spec.name!r}: 'column'}} joins on a column that both have",
        )
    result = []
    for key in spec.primary_key or tuple(chosen):
        column = chosen.get(key, key)
        if column not in left.names:
            raise NoJoinKey(
                f"Feature group {spec.name!r} is joined on {listing(spec.primary_key)}; the left "
                "side has no column "
                f"{column!r}, it has {listing(left.names, limit=30)}. "
                f"{show_keys(groups or [spec])}.",
                hint=f"join_key={{{spec.name!r}: {{'your column': {key!r}}}}}",
            )
        _check_comparable(spec, key=key, left=left.field(column), library=library)
        result.append((column, key))
    return tuple(result)


def show_keys(groups: Sequence[FeatureGroupSpec]) -> str:
    """Return one sentence with the primary key of each group."""
    keys = []
    for spec in groups:
        keys.append(f"{spec.name}@v{spec.version} ({', '.join(spec.primary_key) or 'none'})")
    return f"Keys: {'; '.join(keys)}"


def comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Tell whether values of two types can be equal without a conversion that loses something.

    Whole numbers and decimals compare by value. Nulls without a type meet no key.

    >>> comparable(pa.decimal128(2, 1), pa.decimal128(4, 2)), comparable(pa.float64(), pa.int64())
    (True, False)
    """
    return bool(left == right) or pat.is_null(left) or (is_exact(left) and is_exact(right))


def key_types(
    left: pa.Schema, groups: Sequence[FeatureGroupSpec], join_key: JoinKey | None
) -> dict[str, pa.DataType]:
    """Return for each left column that meets a key the type of that key.

    Raises:
        NoJoinKey: A key column has no partner on the left side.
    """
    names = pa.schema([pa.field(name, pa.null()) for name in left.names])
    said = per_group(join_key, left=names, groups=groups)
    types: dict[str, pa.DataType] = {}
    for spec in groups:
        keys = said[spec.name, spec.version]
        for column, key in pairs(spec, left=names, said=keys, groups=groups):
            types.setdefault(column, spec.schema.field(key).type)
    return types


def _named(spec: FeatureGroupSpec, *, left: pa.Schema, said: Keys | None) -> dict[str, str]:
    """Return {key column: left column} as far as ``join_key=`` says it."""
    if said is None:
        return {}
    known = _keys(spec)
    if isinstance(said, Mapping):
        chosen: dict[str, Any] = dict(zip(said.values(), said.keys(), strict=True))
        if len(chosen) != len(said) or not set(chosen) <= set(known):
            raise NoJoinKey(
                f"join_key={dict(said)!r} does not fit feature group {spec.name!r}, "
                f"whose key is {listing(spec.primary_key)}.",
                hint="write {'label column': 'key column'}",
            )
        return chosen
    if isinstance(said, str):
        names = [said]
    else:
        names = list(said)
    keys, others = [], []
    for name in names:
        if name in known:
            keys.append(name)
        else:
            others.append(name)
    if others and len(names) == len(spec.primary_key) == 1 and names[0] in left.names:
        return {spec.primary_key[0]: names[0]}
    strange = [name for name in others if name not in left.names]
    if strange:
        raise NoJoinKey(
            f"join_key names {listing(others)}, a column neither of the left side nor a key of "
            f"{spec.name!r}. "
            f"{show_keys([spec])}. The left side has {listing(left.names, limit=30)}.",
        )
    return dict(zip(keys, keys, strict=True))


def _keys(spec: FeatureGroupSpec) -> Sequence[str]:
    return spec.primary_key or tuple(spec.schema.names)


def _check_comparable(
    spec: FeatureGroupSpec, *, key: str, left: pa.Field, library: str | None
) -> None:
    right = spec.schema.field(key).type
    if not can_be_key(right):
        raise NoJoinKey(
            f"The column {key!r} of feature group {spec.name!r} is {right}, which cannot be a key.",
            hint="keys are integers, strings, booleans, dates, timestamps, decimals or binary",
        )
    if comparable(left.type, right):
        return
    line = None
    if library is not None:
        line = key_line(library, left.name, left.type, right)
    raise NoJoinKey(
        f"The key {key!r} of feature group {spec.name!r} is {right}; the left column "
        f"{left.name!r} is {left.type}.",
        hint=line or f"convert the column {left.name!r} to {right} first",
    )
