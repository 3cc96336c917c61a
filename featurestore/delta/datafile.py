"""Data files in a Delta log: paths, sizes and statistics, and column bounds from the statistics.

Bounds are ordinals: integers, days since 1970 for dates, and microseconds since 1970 for times. A
lower bound is at most the minimum; an upper bound is at least the maximum. Spark (and delta-rs in
checkpoints) truncates times to milliseconds, so the actual maximum may be up to 999 microseconds
later than in the log; the same tolerance is applied to the minimum. Strings have no bounds, because
writers truncate them in different ways.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from featurestore.delta.checksums import Action, checksum_in_add
from featurestore.delta.log import damaged_file
from featurestore.errors import FeatureStoreError, TableDamaged, UnsupportedTable
from featurestore.model.times import to_micros
from featurestore.storage import storage_for
from featurestore.storage.location import make_absolute

MICROS_OF_DAY = 86_400_000_000
_MILLISECOND_DIGITS = 3
_TRUNCATED_MICROS = 999
_FIRST_DAY = date(1970, 1, 1).toordinal()
_INT64 = np.iinfo(np.int64)
# In the log, a colon in the first name of a relative path is encoded.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
# delta-rs, Spark and this library write the row count first. It is read without parsing the
# statistics, which may have thousands of columns.
_LEADING_ROW_COUNT = re.compile(r'\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]')


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table version.

    ``path`` is absolute; ``log_path`` is the path in the log. ``partition`` maps partition columns
    to the values of the file, as strings. ``statistics`` is the JSON string in the log. ``checksum`` is
    the CRC-32C of the file, None if another program wrote it.
    """

    path: str
    log_path: str
    bytes: int
    rows: int
    modified: int = 0
    partition: Mapping[str, str | None] = field(default_factory=dict)
    statistics: str | None = field(default=None, repr=False)
    checksum: str | None = None


def data_file(path: str, add: Action) -> DataFile:
    """Convert an add action of the table at ``path`` to a data file.

    Raises:
        UnsupportedTable: The file has a deletion vector or is outside of the table.
        TableDamaged: The action is incomplete.
    """
    log_path = add["path"]
    # A file that is read without its deletion vector would return deleted rows.
    if add.get("deletionVector") is not None:
        raise unsupported_feature_error(path, f"deletion vectors (its file {log_path} has one)")
    try:
        return DataFile(
            path=file_path(path, log_path),
            log_path=log_path,
            bytes=int(add["size"]),
            rows=rows_of(path, add),
            modified=int(add.get("modificationTime") or 0),
            partition=dict(add.get("partitionValues") or {}),
            statistics=add.get("stats"),
            checksum=checksum_in_add(add),
        )
    except FeatureStoreError:
        # UnsupportedTable is also a ValueError, and would be reported as an incomplete entry.
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TableDamaged(
            f"The Delta log of {path} has an incomplete entry for the file {log_path}.",
            hint="restore the folder from a copy",
        ) from error


def file_path(path: str, log_path: str, *, folder: str | None = None) -> str:
    """Return the absolute path of a data file.

    Paths in the log are relative paths or URLs, and percent-encoded. The file is below the folder of
    the table or, as a file of a shallow clone, below ``folder``.

    Raises:
        UnsupportedTable: The file is outside of the table, as in a shallow clone.
        TableDamaged: The path is invalid.
    """
    path = make_absolute(path)
    # Functions of ``os`` raise ValueError instead of OSError for a path with a NUL byte.
    if not isinstance(log_path, str) or "\0" in unquote(log_path):
        raise TableDamaged(
            f"The Delta log of {path} has the invalid file path {log_path!r}.",
            hint="restore the folder from a copy",
        )
    decoded_path = log_path
    if _SCHEME.match(log_path):
        url = urlsplit(log_path)
        if url.scheme != "file":
            raise unsupported_feature_error(path, f"files outside its folder ({log_path})")
        decoded_path = url.path
    # Decode before the check below: "%2E%2E" is ".." as well.
    decoded_path = unquote(decoded_path)
    joined_path = os.path.join(path, decoded_path)
    if not decoded_path.startswith("/") and ".." not in decoded_path:
        return joined_path
    # The log is untrusted: a path that leaves the table could name any file of the machine.
    # normpath would change a URI, so for URIs all paths that are not normalized are rejected.
    joined_path = os.path.normpath(joined_path)
    is_inside = joined_path.startswith(os.path.join(path, ""))
    if not is_inside and (
        folder is None or not storage_for(joined_path).is_below(joined_path, folder)
    ):
        raise unsupported_feature_error(path, f"files outside its folder ({log_path})")
    return joined_path


def unsupported_feature_error(path: str, feature: str) -> UnsupportedTable:
    """Return the error for a table that would be read incorrectly."""
    return UnsupportedTable(
        f"The Delta table at {path} uses {feature}, which the store does not support.",
        hint="copy its rows into a plain Delta table or Parquet files with the tool that wrote it",
    )


def commit_order_key(file: DataFile) -> tuple[int, str]:
    """Return the key that sorts files in commit order."""
    # Files of the same commit have equal times and numbered names.
    return file.modified, file.log_path


def rows_of(path: str, add: Action) -> int:
    """Return the number of rows of an added file, from the log or from the Parquet footer."""
    # Statistics are optional in the Delta protocol.
    rows = rows_in_statistics(add.get("stats"))
    if rows is None:
        rows = _read_footer_rows(file_path(path, add["path"]))
    return rows


def rows_in_statistics(text: str | None) -> int | None:
    """Return the row count in the statistics of a file, or None if it is missing.

    >>> rows_in_statistics('{"numRecords":3,"minValues":{}}')
    3
    """
    if not isinstance(text, str):
        return None
    match = _LEADING_ROW_COUNT.match(text)
    if match is not None:
        return int(match[1])
    rows = parse_statistics(text).get("numRecords")
    if not isinstance(rows, int):
        return None
    return rows


def parse_statistics(text: str | None) -> Action:
    """Parse the statistics of a file; the result is empty if they are missing or invalid."""
    try:
        statistics = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(statistics, dict):
        return {}
    return statistics


def _read_footer_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(storage_for(file).open_ranges(file)).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged_file(file, "is missing or not a Parquet file") from error


@dataclass(frozen=True, eq=False)
class ColumnBounds:
    """The bounds of a column in each file of a snapshot.

    ``is_known`` is False for files without statistics of the column.

    >>> bounds = ColumnBounds.from_pairs([(1, 5), None])
    >>> bounds.may_contain(6, 9).tolist()
    [False, True]
    """

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    is_known: npt.NDArray[np.bool_]

    @classmethod
    def from_pairs(cls, pairs_by_file: Sequence[tuple[int, int] | None]) -> ColumnBounds:
        """Create bounds from one (lower, upper) pair for each file, None for unknown bounds."""
        is_known = np.zeros(len(pairs_by_file), dtype=np.bool_)
        pairs = np.zeros((len(pairs_by_file), 2), dtype=np.int64)
        for position, pair in enumerate(pairs_by_file):
            if pair is not None:
                is_known[position] = True
                pairs[position] = pair
        return cls(pairs[:, 0], pairs[:, 1], is_known)

    def may_contain(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the files that may contain a value in ``[first, last]``."""
        overlaps: npt.NDArray[np.bool_] = (self.low <= last) & (self.high >= first)
        # A file without statistics may contain any value.
        return overlaps | ~self.is_known

    def maximum(self) -> int | None:
        """Return the upper bound of all files, or None if it is unknown or without files."""
        if not len(self.is_known) or not self.is_known.all():
            return None
        return int(self.high.max())

    def pairs(self) -> list[tuple[int, int] | None]:
        """Return the (lower, upper) pair of each file, None for unknown bounds."""
        sides = zip(self.low.tolist(), self.high.tolist(), self.is_known.tolist(), strict=True)
        return [(low, high) if known else None for low, high, known in sides]

    def select(self, is_selected: npt.NDArray[np.bool_]) -> ColumnBounds:
        """Return the bounds of the files selected by a mask."""
        return ColumnBounds(
            self.low[is_selected], self.high[is_selected], self.is_known[is_selected]
        )

    def concat(self, bounds: ColumnBounds) -> ColumnBounds:
        """Append the bounds of other files."""
        return ColumnBounds(
            np.concatenate([self.low, bounds.low]),
            np.concatenate([self.high, bounds.high]),
            np.concatenate([self.is_known, bounds.is_known]),
        )


def has_bounds(dtype: pa.DataType) -> bool:
    """Return True if bounds are supported for columns of a storage type."""
    return bool(pat.is_integer(dtype) or pat.is_date(dtype) or pat.is_timestamp(dtype))


def bounds_from_statistics(
    statistics: Action, column: str, dtype: pa.DataType
) -> tuple[int, int] | None:
    """Return the lower and upper bound of a column from file statistics, or None if unknown.

    >>> stats = {"minValues": {"n": 1}, "maxValues": {"n": 5}}
    >>> bounds_from_statistics(stats, "n", pa.int64())
    (1, 5)
    """
    minimums, maximums = statistics.get("minValues"), statistics.get("maxValues")
    if not isinstance(minimums, dict) or not isinstance(maximums, dict):
        return None
    low = _parse_bound(minimums.get(column), dtype, slack=-_TRUNCATED_MICROS)
    high = _parse_bound(maximums.get(column), dtype, slack=_TRUNCATED_MICROS)
    if low is None or high is None:
        return None
    return low, high


def bounds_from_partition(text: str | None, dtype: pa.DataType) -> tuple[int, int] | None:
    """Return the bounds of a partition column for a partition value."""
    value: Any = text
    if text is not None and pat.is_integer(dtype):
        try:
            value = int(text)
        except ValueError:
            return None
    # Partition values are complete: writers do not truncate them.
    bound = _parse_bound(value, dtype, slack=0)
    if bound is None:
        return None
    return bound, bound


def ordinal(value: Any) -> int | None:
    """Convert a Python value to an ordinal, or return None for types without bounds.

    >>> ordinal(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return to_micros(value)
    if isinstance(value, date):
        return value.toordinal() - _FIRST_DAY
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _parse_bound(value: Any, dtype: pa.DataType, *, slack: int) -> int | None:
    """Convert a bound in the log to an ordinal, shifted by ``slack`` if it may be truncated."""
    if pat.is_integer(dtype):
        # Integers in JSON have any size, and bounds are stored as int64.
        if not isinstance(value, int) or not _INT64.min <= value <= _INT64.max:
            return None
        return ordinal(value)
    if not isinstance(value, str):
        return None
    try:
        if pat.is_date(dtype):
            return ordinal(date.fromisoformat(value))
        if pat.is_timestamp(dtype):
            bound = ordinal(datetime.fromisoformat(value))
            if bound is not None and _may_be_truncated(value):
                bound += slack
            return bound
    except (ValueError, OverflowError):
        # Other writers support years before 1 and after 9999.
        return None
    return None


def _may_be_truncated(text: str) -> bool:
    """Return True if a time string has fewer than six fractional digits."""
    _, dot, fraction = text.partition(".")
    digits = len(fraction) - len(fraction.lstrip("0123456789"))
    return not dot or digits <= _MILLISECOND_DIGITS
