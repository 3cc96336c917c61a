"""Verification of data files: their sizes, and their checksums or their rows."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from featurestore.delta import log
from featurestore.delta.checksums import checksum_in_add, file_checksum
from featurestore.delta.datafile import file_path, rows_in_statistics
from featurestore.delta.verification import COPY_HINT, TableVerification
from featurestore.errors import UnsupportedTable
from featurestore.storage import files


@dataclass(frozen=True)
class AddedFile:
    """A data file in the log, and the commit that added it; None for files of a checkpoint."""

    add: Mapping[str, Any]
    version: int | None
    is_current: bool


@dataclass(frozen=True)
class Outcome:
    """The result of one file; a file that no version needs may be missing."""

    file: str
    problem: str | None = None
    is_missing: bool = False
    is_unverified: bool = False


def verify_file(path: str, added: AddedFile) -> Outcome:
    """Read a data file, and compare it with its size and checksum in the log."""
    try:
        file = file_path(path, added.add["path"])
    except UnsupportedTable as error:
        return Outcome(added.add["path"], error.message)
    try:
        expected_size = int(added.add["size"])
        checksum = checksum_in_add(added.add)
    except (KeyError, TypeError, ValueError):
        return Outcome(file, "has an incomplete entry in the log")
    try:
        size = files.status(file).size
        if size != expected_size:
            return Outcome(file, f"has {size:,} bytes, but {expected_size:,} in the log")
        if checksum is None:
            return Outcome(file, _unreadable_reason(file, added.add), is_unverified=True)
        differs = file_checksum(file) != checksum
    except FileNotFoundError:
        return Outcome(file, "is missing", is_missing=True)
    return Outcome(file, "differs from its checksum" if differs else None)


def _unreadable_reason(file: str, add: Mapping[str, Any]) -> str | None:
    """Decode all rows of a file without a checksum; return the reason if they are not readable."""
    from pyarrow import parquet

    expected_rows = rows_in_statistics(add.get("stats"))
    # Files of Spark have checksums of pages, which pyarrow 14 does not verify.
    parameters = inspect.signature(parquet.ParquetFile).parameters
    options = {"page_checksum_verification"} & parameters.keys()
    try:
        with parquet.ParquetFile(
            files.open_ranges(file), **dict.fromkeys(options, True)
        ) as parquet_file:
            rows = sum(batch.num_rows for batch in parquet_file.iter_batches())
    except (OSError, pa.ArrowException) as error:
        return f"is not a readable Parquet file: {error}"
    if expected_rows is not None and rows != expected_rows:
        return f"has {rows:,} rows, but {expected_rows:,} in the log"
    return None


def add_outcome(result: TableVerification, added: AddedFile, outcome: Outcome) -> None:
    """Add the outcome of a file to the result of its table."""
    # A vacuum may have removed files that only older versions need.
    if outcome.is_missing and (not added.is_current or _is_replaced(result, added)):
        return
    result.files += 1
    result.bytes += int(added.add.get("size") or 0)
    if added.is_current:
        result.rows += rows_in_statistics(added.add.get("stats")) or 0
    if outcome.problem is not None:
        hint = COPY_HINT
        if added.version is not None and added.version > 1:
            hint += f", or read the rows before this file: as_of={added.version - 1}"
        result.add_problem(outcome.file, outcome.problem, version=added.version, hint=hint)
    elif outcome.is_unverified:
        relative = outcome.file.removeprefix(os.path.join(result.path, ""))
        result.unverified.append(f"{relative}: has no checksum, but its rows are readable")


def _is_replaced(result: TableVerification, added: AddedFile) -> bool:
    """Return True if a commit since the start of the verification removed a file."""
    return any(
        removed["path"] == added.add["path"]
        for version in range(result.latest + 1, log.latest_version(result.path) + 1)
        for removed in log.actions_of_kind(
            log.read_commit(log.commit_path(result.path, version)), "remove"
        )
    )
