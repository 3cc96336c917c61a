"""Decoding of rows of encoded files into an array, by threads.

The decoders release the GIL, so threads decode in parallel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from featurestore.model.runtime import usable_cores
from featurestore.model.threads import independent_tasks
from featurestore.readers.columns import NumpyArray

# Number of files per thread task.
_TASK_FILES = 64


def decode_rows(
    files: NumpyArray,
    present: npt.NDArray[np.bool_] | None,
    *,
    target: NumpyArray,
    decode: Callable[[int, bytes], None],
    threads_name: str,
) -> None:
    """Decode files into the rows of an array; rows without a file are zeros.

    Args:
        files: The bytes of each file; empty bytes are padding.
        present: Mask of rows with a file; None if all rows have one.
        target: The array, one row per file.
        decode: Decodes the file of a row into ``target``.
        threads_name: The name of the threads.

    The error of the first row that cannot be decoded is raised.
    """
    rows = []
    for row, cell in enumerate(files.tolist()):
        if cell and (present is None or present[row]):
            rows.append(row)
        else:
            target[row] = 0
    tasks = [rows[start : start + _TASK_FILES] for start in range(0, len(rows), _TASK_FILES)]

    def decode_task(task: list[int]) -> None:
        for row in task:
            decode(row, files[row])

    threads = min(usable_cores(), len(tasks))
    if threads < 2:
        decode_task(rows)
        return
    # Create a thread pool per call, since a pool does not survive the fork of a worker process.
    with independent_tasks(threads, threads_name) as pool:
        # The results are consumed in task order, so the error of the first invalid row is raised.
        list(pool.map(decode_task, tasks))
