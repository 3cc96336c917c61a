"""The data files that Delta for Spark lists for a table must be in the table's folder.

``featurestore.delta`` replays the log and refuses other files, but Delta may replay different files
of the same log: it reads compacted logs, and may select another checkpoint. Logs that consist of
commits have one interpretation, so only other logs are checked.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote

from featurestore.delta.datafile import unsupported_feature_error
from featurestore.delta.log import LOG_FOLDER
from featurestore.delta.outside import summarized_version
from featurestore.storage import storage_for
from featurestore.storage.interface import FileStatus
from featurestore.storage.location import make_absolute, remove_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_SCHEME = re.compile(r"file:/+")
# For each table and its summaries, the lowest version that was checked. Listing the files of a
# version takes a Spark job.
_lowest_checked: dict[tuple[str, frozenset[tuple[str, FileStatus]]], int] = {}
_MAX_CHECKED = 1000
_guard = threading.Lock()


def check_listed_files(session: SparkSession, path: str, version: int) -> None:
    """Check that Delta lists no files outside of a table's folder for a version.

    Raises:
        UnsupportedTable: A file is outside of the table.
    """
    summaries = frozenset(
        (file, status)
        for file, status in storage_for(path).walk_with_status(os.path.join(path, LOG_FOLDER))
        if 0 <= summarized_version(os.path.basename(file)) <= version
    )
    # The commits after the summaries have been replayed by this process, which refuses such files.
    lowest = _lowest_checked.get((path, summaries), version + 1)
    if not summaries or lowest <= version:
        return
    frame = session.read.format("delta").option("versionAsOf", version).load(path)
    for file in frame.inputFiles():
        _check_inside(path, file)
    with _guard:
        if len(_lowest_checked) >= _MAX_CHECKED:
            _lowest_checked.clear()
        _lowest_checked[path, summaries] = version


def _check_inside(path: str, file: str) -> None:
    """Raise UnsupportedTable if a file that Delta lists is outside of a table."""
    folder = f"{make_absolute(remove_owner(path))}/"
    # Delta returns the paths of local files without encoding and with a scheme.
    listed = remove_owner(file)
    if storage_for(path).is_local:
        listed = _LOCAL_SCHEME.sub("/", file)
    if not listed.startswith(folder) or ".." in unquote(listed[len(folder) :]).split("/"):
        raise unsupported_feature_error(path, f"files outside its folder ({file})")
