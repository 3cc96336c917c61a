"""Files of training datasets, whole or from one byte on, so that a download can go on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from starlette.responses import StreamingResponse

from featurestore.errors import TrainingDatasetNotFound
from featurestore.storage import files
from featurestore.training import TrainingDataset
from featurestore.training.download import files_of

_REST = re.compile(r"bytes=(\d{1,18})-")


def file_response(dataset: TrainingDataset, path: str, range_header: str) -> StreamingResponse:
    """Return a file that the manifest names, with its SHA-256 as tag.

    A range that begins at a byte and has no end is given as asked; others may be ignored, and are.

    Raises:
        TrainingDatasetNotFound: The manifest names no such file.
    """
    known = files_of(dataset.manifest)
    if path not in known:
        raise TrainingDatasetNotFound(
            f"Training dataset {dataset.name!r} version {dataset.version} has no file {path!r}.",
            hint=f"its manifest names {len(known):,} files",
        )
    place = files.inside(dataset.path, path)
    size = files.size(place)
    headers = {"etag": f'"{known[path]}"', "accept-ranges": "bytes"}
    asked = _REST.fullmatch(range_header)
    start = 0
    status = 200
    if asked is not None:
        start, status = int(asked[1]), 206
        headers["content-range"] = f"bytes {start}-{size - 1}/{size}"
    content: Iterator[bytes] = files.pieces(place, start=start)
    if asked is not None and start >= size:
        status, content = 416, iter(())
        headers["content-range"] = f"bytes */{size}"
    headers["content-length"] = str(max(0, size - start))
    return StreamingResponse(
        content, status_code=status, headers=headers, media_type="application/octet-stream"
    )
