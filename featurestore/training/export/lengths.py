"""Declared maximum lengths of lists and strings (``max_lengths``), checked before the export.

A format may reserve this length in every record, so that all records have the same width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.types import items_of
from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.plugins.format import ColumnProfile


def check_max_lengths(max_lengths: object, schema: pa.Schema) -> dict[str, int]:
    """Return the checked argument ``max_lengths=``.

    Raises:
        InvalidArgument: It is not ``{column: length}``, or the values of a column have no length.
        FeatureNotFound: A column does not exist.

    >>> check_max_lengths({"stops": 8}, pa.schema([("stops", pa.list_(pa.string()))]))
    {'stops': 8}
    """
    if not isinstance(max_lengths, Mapping):
        raise InvalidArgument(
            f"max_lengths={max_lengths!r} is not a mapping.", hint='max_lengths={"stops": 8}'
        )
    lengths = {}
    for name, length in max_lengths.items():
        if name not in schema.names:
            raise FeatureNotFound(
                f"max_lengths names {name!r}; the columns are {listing(schema.names, limit=50)}.",
                hint=did_you_mean(name, schema.names, write="{!r}"),
            )
        kind = schema.field(name).type
        if not _has_length(kind):
            raise InvalidArgument(
                f"max_lengths[{name!r}]: the column is {kind}, whose values have a fixed length.",
                hint="lists, strings and binary columns have lengths",
            )
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise InvalidArgument(f"max_lengths[{name!r}]={length!r} is not a positive integer.")
        lengths[str(name)] = length
    return lengths


def _has_length(kind: pa.DataType) -> bool:
    if pat.is_list(kind):
        return True
    item = items_of(kind)
    return bool(pat.is_string(item) or pat.is_binary(item))


def declared_profiles(
    profiles: Sequence[ColumnProfile], max_lengths: Mapping[str, int]
) -> tuple[ColumnProfile, ...]:
    """Return the profiles, marked if a length was declared.

    Raises:
        InvalidArgument: Values are longer than declared; lists all such columns.
    """
    declared = []
    longer = []
    sufficient_lengths = dict(max_lengths)
    for profile in profiles:
        max_length = max_lengths.get(profile.name)
        if max_length is not None and profile.longest > max_length:
            longer.append(f"{profile.name!r} ({profile.longest:,}, declared {max_length:,})")
            sufficient_lengths[profile.name] = profile.longest
        declared.append(replace(profile, declared=max_length is not None))
    if longer:
        raise InvalidArgument(
            f"Values of these columns exceed max_lengths: {', '.join(longer)}.",
            hint=f"max_lengths={sufficient_lengths}, or truncate the values first",
        )
    return tuple(declared)
