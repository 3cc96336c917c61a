"""Data files of the log: paths, sizes and statistics."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from featurestore.delta import protocol
from featurestore.delta.log import damaged_file
from featurestore.errors import FeatureStoreError, TableDamaged
from featurestore.storage import files
from featurestore.storage.location import absolute

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/")
_LEADING_ROW_COUNT = re.compile(r'\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]')


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table version; ``path`` is absolute, ``log_path`` is the path in the log.

    ``partition`` has the partition values of the file by column, as text; ``statistics`` is the
    JSON text of the log.
    """

    path: str
    log_path: str
    bytes: int
    rows: int
    modified: int = 0
    partition: Mapping[str, str | None] = field(default_factory=dict)
    statistics: str | None = field(default=None, repr=False)


def data_file(path: str, add: Mapping[str, Any]) -> DataFile:
    """Return the file of an add action of the table at ``path``.

    Raises:
        UnsupportedTable: The file has a deletion vector, or is outside of the table.
        TableDamaged: The action is incomplete.
    """
    log_path = add["path"]
    protocol.check_no_vector(path, log_path, add)
    try:
        return DataFile(
            path=file_path(path, log_path),
            log_path=log_path,
            bytes=int(add["size"]),
            rows=rows_of(path, add),
            modified=int(add.get("modificationTime") or 0),
            partition=dict(add.get("partitionValues") or {}),
            statistics=add.get("stats"),
        )
    except FeatureStoreError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TableDamaged(
            f"The Delta log of {path} has an incomplete entry of the file {log_path}.",
            hint="restore the folder from a copy",
        ) from error


def order_of_writing(file: DataFile) -> tuple[int, str]:
    """Return the sort key of files in commit order."""
    # Files of one commit have equal times and numbered names.
    return file.modified, file.log_path


def file_path(path: str, log_path: str) -> str:
    """Return the absolute path of a data file.

    Paths in the log are relative or URLs, and percent-encoded.

    Raises:
        UnsupportedTable: The file is outside of the table, as in a shallow clone.
        TableDamaged: The path is invalid.
    """
    path = absolute(path)
    if not isinstance(log_path, str) or "\0" in unquote(log_path):
        raise TableDamaged(
            f"The Delta log of {path} has the invalid path {log_path!r} of a file.",
            hint="restore the folder from a copy",
        )
    decoded_path = log_path
    if _SCHEME.match(log_path):
        url = urlsplit(log_path)
        if url.scheme != "file":
            raise protocol.refusal(path, f"files outside its folder ({log_path})")
        decoded_path = url.path
    decoded_path = unquote(decoded_path)
    joined_path = os.path.join(path, decoded_path)
    if not decoded_path.startswith("/") and ".." not in decoded_path:
        return joined_path
    # normpath changes a URI: there all paths that are not plain are refused.
    joined_path = os.path.normpath(joined_path)
    if not joined_path.startswith(os.path.join(path, "")):
        raise protocol.refusal(path, f"files outside its folder ({log_path})")
    return joined_path


def rows_of(path: str, add: Mapping[str, Any]) -> int:
    """Return the number of rows of an added file, from the log or else from the file."""
    rows = rows_in_statistics(add.get("stats"))
    if rows is None:
        rows = _footer_rows(file_path(path, add["path"]))
    return rows


def rows_in_statistics(text: str | None) -> int | None:
    """Return the number of rows in the statistics of a file, None if it is missing.

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


def parse_statistics(text: str | None) -> Mapping[str, Any]:
    """Return the statistics of a file, empty if they are missing or invalid."""
    try:
        statistics = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(statistics, dict):
        return {}
    return statistics


def _footer_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(files.open_ranges(file)).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged_file(file, "is missing or not a Parquet file") from error
