"""Data files as the log names them: where they are, and what they hold."""

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
from featurestore.storage.location import absolute, is_uri

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/")
_ROWS_FIRST = re.compile(r'\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]')


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table version; ``path`` is absolute, ``log_path`` as the log writes it.

    ``partition`` holds the values of all its rows by column, as texts of the log; ``statistics`` is
    JSON of the log.
    """

    path: str
    log_path: str
    bytes: int
    rows: int
    modified: int = 0
    partition: Mapping[str, str | None] = field(default_factory=dict)
    statistics: str | None = field(default=None, repr=False)


def data_file(path: str, add: Mapping[str, Any]) -> DataFile:
    """Return the file that an action of the log adds to the table at ``path``.

    Raises:
        UnsupportedTable: A deletion vector hides rows of the file, or it lies outside the table.
        TableDamaged: The action tells too little.
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
            f"The Delta log of {path} tells too little of the file {log_path}.",
            hint="restore the folder from a copy",
        ) from error


def order_of_writing(file: DataFile) -> tuple[int, str]:
    """Return the key that sorts the files of a table in the order of their commits."""
    # Files of one commit share their time, and writers number them.
    return file.modified, file.log_path


def file_path(path: str, log_path: str) -> str:
    """Return the absolute path of a data file.

    The log names it relative or as a URL, percent-encoded.

    Raises:
        UnsupportedTable: The file lies outside the table, as those of a shallow clone do.
        TableDamaged: It is no path.
    """
    path = absolute(path)
    if not isinstance(log_path, str) or "\0" in unquote(log_path):
        raise TableDamaged(
            f"The Delta log of {path} names a file {log_path!r}, which is no path.",
            hint="restore the folder from a copy",
        )
    text = log_path
    if _SCHEME.match(log_path):
        url = urlsplit(log_path)
        if url.scheme != "file":
            raise protocol.refusal(path, f"files outside its folder ({log_path})")
        text = url.path
    text = unquote(text)
    found = os.path.join(path, text)
    if not text.startswith("/") and ".." not in text:
        return found
    if is_uri(path):
        raise protocol.refusal(path, f"files outside its folder ({log_path})")
    found = os.path.normpath(found)
    if not found.startswith(os.path.join(path, "")):
        raise protocol.refusal(path, f"files outside its folder ({log_path})")
    return found


def rows_of(path: str, add: Mapping[str, Any]) -> int:
    """Return how many rows an added file has: by the log, else by the file itself."""
    rows = rows_in_statistics(add.get("stats"))
    if rows is None:
        rows = _footer_rows(file_path(path, add["path"]))
    return rows


def rows_in_statistics(text: str | None) -> int | None:
    """Return how many rows the statistics of a file state, None where they do not.

    >>> rows_in_statistics('{"numRecords":3,"minValues":{}}')
    3
    """
    if not isinstance(text, str):
        return None
    quick = _ROWS_FIRST.match(text)
    if quick is not None:
        return int(quick[1])
    rows = parsed_statistics(text).get("numRecords")
    if not isinstance(rows, int):
        return None
    return rows


def parsed_statistics(text: str | None) -> Mapping[str, Any]:
    """Return the statistics of a file; empty where there are none that can be read."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return found


def _footer_rows(file: str) -> int:
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(files.opened_by_ranges(file)).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise damaged_file(file, "is missing or no Parquet file") from error
