"""Greatest lengths of lists and texts that the caller declares, checked before anything is written.

A format may then keep room for the longest value in every record, so that all have one width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.shapes import items_of
from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.plugins.format import ColumnProfile


def check_max_lengths(asked: object, schema: pa.Schema) -> dict[str, int]:
    """Return ``max_lengths=`` as it was given.

    Raises:
        InvalidArgument: It is no ``{column: length}``, or the values of a column have no length.
        FeatureNotFound: There is no such column.

    >>> check_max_lengths({"stops": 8}, pa.schema([("stops", pa.list_(pa.string()))]))
    {'stops': 8}
    """
    if not isinstance(asked, Mapping):
        raise InvalidArgument(
            f"max_lengths={asked!r} is no mapping.", hint='max_lengths={"stops": 8}'
        )
    lengths = {}
    for name, length in asked.items():
        if name not in schema.names:
            raise FeatureNotFound(
                f"max_lengths names {name!r}; the columns are {listing(schema.names, limit=50)}.",
                hint=did_you_mean(name, schema.names, write="{!r}"),
            )
        kind = schema.field(name).type
        if not _has_length(kind):
            raise InvalidArgument(
                f"max_lengths[{name!r}]: the column is {kind}, whose values are all of one length.",
                hint="lengths are of lists, texts and binaries",
            )
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise InvalidArgument(f"max_lengths[{name!r}]={length!r} is no positive whole number.")
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
    """Return profiles that say which lengths were declared.

    Raises:
        InvalidArgument: Values are longer than declared; all such columns are named.
    """
    found = []
    longer = []
    fitting = dict(max_lengths)
    for profile in profiles:
        most = max_lengths.get(profile.name)
        if most is not None and profile.longest > most:
            longer.append(f"{profile.name!r} ({profile.longest:,}, declared {most:,})")
            fitting[profile.name] = profile.longest
        found.append(replace(profile, declared=most is not None))
    if longer:
        raise InvalidArgument(
            f"Values of these columns are longer than max_lengths says: {', '.join(longer)}.",
            hint=f"max_lengths={fitting}, or cut them before the dataset is made",
        )
    return tuple(found)
