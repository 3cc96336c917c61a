"""Column profiles, which are computed from Arrow batches and determine the layout of a format.

Users may declare the lengths of lists and strings (``max_lengths``). A format may reserve these
lengths in every record, so that all records have the same width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.types import array_item_type, array_shape
from featurestore.arrow.values import larger_magnitude, largest_finite
from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.plugins.engine import Accumulator
from featurestore.plugins.format import ColumnProfile


@dataclass
class RunningProfile:
    """The profile of a column while it is computed; ``ColumnProfile`` describes the fields."""

    rows: int = 0
    nulls: int = 0
    minimum: int | None = None
    maximum: int | None = None
    longest: int = 0
    total_length: int = 0
    inner_nulls: int = 0
    longest_item: int = 0
    longest_bytes: int = 0
    largest: float | None = None

    def count(self, array: pa.Array) -> None:
        """Update the profile with the values of an array."""
        self.rows += len(array)
        self.nulls += array.null_count
        data_type = array.type
        if pat.is_string(data_type) or pat.is_binary(data_type):
            self._update_lengths(pc.binary_length(array))
        elif pat.is_list(data_type):
            self._update_lengths(pc.list_value_length(array))
        if pat.is_list(data_type) or pat.is_fixed_size_list(data_type):
            self._update_item_lengths(array)
        # Nested lists are flattened level by level; nulls at each level count separately.
        while pat.is_list(array.type) or pat.is_fixed_size_list(array.type):
            array = array.flatten()
            self.inner_nulls += array.null_count
        if pat.is_float64(array.type):
            self.largest = larger_magnitude([self.largest, largest_finite(array)])
        extremes = _find_extremes(array)
        if extremes is not None:
            self._widen_range(*extremes)

    def merge(self, profile: RunningProfile) -> None:
        """Merge the profile of other rows."""
        self.rows += profile.rows
        self.nulls += profile.nulls
        self.longest = max(self.longest, profile.longest)
        self.total_length += profile.total_length
        self.inner_nulls += profile.inner_nulls
        self.longest_item = max(self.longest_item, profile.longest_item)
        self.longest_bytes = max(self.longest_bytes, profile.longest_bytes)
        self.largest = larger_magnitude([self.largest, profile.largest])
        if profile.minimum is not None and profile.maximum is not None:
            self._widen_range(profile.minimum, profile.maximum)

    def _update_lengths(self, lengths: pa.Array) -> None:
        # An array of nulls has no maximum and no sum.
        self.longest = max(self.longest, pc.max(lengths).as_py() or 0)
        self.total_length += pc.sum(lengths).as_py() or 0

    def _update_item_lengths(self, array: pa.Array) -> None:
        """Update the item lengths with the byte lengths of strings and binaries inside lists."""
        items = array
        while pat.is_list(items.type) or pat.is_fixed_size_list(items.type):
            items = items.flatten()
        if not (pat.is_string(items.type) or pat.is_binary(items.type)) or len(items) == 0:
            return
        lengths = pc.fill_null(pc.binary_length(items), 0).to_numpy()
        self.longest_item = max(self.longest_item, int(lengths.max()))
        # Cumulative sums give the bytes of each row without a Python loop.
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        rows = np.append(0, np.cumsum(_item_counts(array)))
        self.longest_bytes = max(self.longest_bytes, int(np.diff(ends[rows]).max()))

    def _widen_range(self, minimum: int, maximum: int) -> None:
        if self.minimum is None or minimum < self.minimum:
            self.minimum = minimum
        if self.maximum is None or maximum > self.maximum:
            self.maximum = maximum


def _item_counts(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of list items in each row; 0 for null."""
    if pat.is_list(array.type):
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        return counts.astype(np.int64) * prod(array_shape(array.type.value_type))
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return valid.astype(np.int64) * prod(array_shape(array.type))


def _find_extremes(array: pa.Array) -> tuple[int, int] | None:
    """Return the minimum and maximum integer, day or microsecond, or None without values."""
    # Layouts need the stored integers: days or microseconds.
    if pat.is_date32(array.type):
        array = array.view(pa.int32())
    elif pat.is_date(array.type) or pat.is_timestamp(array.type):
        array = array.view(pa.int64())
    if not pat.is_integer(array.type):
        return None
    extremes = pc.min_max(array).as_py()
    if extremes["min"] is None:
        return None
    return extremes["min"], extremes["max"]


@dataclass(frozen=True)
class ProfileAccumulator(Accumulator[list[RunningProfile], tuple[ColumnProfile, ...]]):
    """An accumulator of row counts, null counts, extremes and lengths of columns."""

    columns: tuple[str, ...]

    def start(self) -> list[RunningProfile]:
        """Return empty profiles."""
        return [RunningProfile() for _ in self.columns]

    def update(self, state: list[RunningProfile], batch: pa.RecordBatch) -> list[RunningProfile]:
        """Update the profiles with a batch."""
        for name, counts in zip(self.columns, state, strict=True):
            counts.count(batch.column(batch.schema.get_field_index(name)))
        return state

    def merge(
        self, state: list[RunningProfile], other_state: list[RunningProfile]
    ) -> list[RunningProfile]:
        """Merge two lists of profiles."""
        for profile, other_profile in zip(state, other_state, strict=True):
            profile.merge(other_profile)
        return state

    def finish(self, state: list[RunningProfile]) -> tuple[ColumnProfile, ...]:
        """Convert the profiles to ``ColumnProfile``."""
        profiles = [
            ColumnProfile(name, **vars(counts))
            for name, counts in zip(self.columns, state, strict=True)
        ]
        return tuple(profiles)


def profile_all_columns(
    columns: Sequence[str], profiles: Sequence[ColumnProfile], *, rows: int
) -> tuple[ColumnProfile, ...]:
    """Return a profile for each column; uncounted columns have only a row count."""
    counted_profiles = {profile.name: profile for profile in profiles}
    all_profiles = [counted_profiles.get(name) or ColumnProfile(name, rows, 0) for name in columns]
    return tuple(all_profiles)


def check_max_lengths(max_lengths: object, schema: pa.Schema) -> dict[str, int]:
    """Check the argument ``max_lengths=`` and return it.

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
                f"Unknown column {name!r} in max_lengths. "
                f"Available: {listing(schema.names, limit=50)}.",
                hint=did_you_mean(name, schema.names, write="{!r}"),
            )
        data_type = schema.field(name).type
        item = array_item_type(data_type)
        if not (pat.is_list(data_type) or pat.is_string(item) or pat.is_binary(item)):
            raise InvalidArgument(
                f"max_lengths[{name!r}]: values of type {data_type} have a fixed length.",
                hint="declare lengths of list, string and binary columns only",
            )
        # bool is a subclass of int.
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise InvalidArgument(f"max_lengths[{name!r}]={length!r} is not a positive integer.")
        lengths[str(name)] = length
    return lengths


def mark_declared_lengths(
    profiles: Sequence[ColumnProfile], max_lengths: Mapping[str, int]
) -> tuple[ColumnProfile, ...]:
    """Mark the profiles of columns with declared lengths, after checking the lengths.

    Raises:
        InvalidArgument: Values exceed their declared length; the message lists all such columns.
    """
    declared = []
    longer = []
    # All columns are checked before the error, so that one run reports every length.
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
