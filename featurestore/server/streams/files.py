"""Downloads of training dataset files, complete or from an offset."""

from __future__ import annotations

import re
from collections.abc import Iterator

from starlette.responses import StreamingResponse

from featurestore.errors import TrainingDatasetNotFound
from featurestore.storage import files
from featurestore.training import TrainingDataset
from featurestore.training.download import manifest_hashes

_OPEN_RANGE = re.compile(r"bytes=(\d{1,18})-")


def file_response(dataset: TrainingDataset, path: str, range_header: str) -> StreamingResponse:
    """Return a file of the manifest, with its SHA-256 as ETag.

    Only open ranges (``bytes=1000-``) are supported; HTTP allows a server to ignore others.

    Raises:
        TrainingDatasetNotFound: The manifest does not contain the file.
    """
    file_hashes = manifest_hashes(dataset.manifest)
    if path not in file_hashes:
        raise TrainingDatasetNotFound(
            f"Training dataset {dataset.name!r} version {dataset.version} has no file {path!r}.",
            hint=f"its manifest lists {len(file_hashes):,} files",
        )
    full_path = files.inside(dataset.path, path)
    size = files.size(full_path)
    headers = {"etag": f'"{file_hashes[path]}"', "accept-ranges": "bytes"}
    range_match = _OPEN_RANGE.fullmatch(range_header)
    start = 0
    status = 200
    if range_match is not None:
        start, status = int(range_match[1]), 206
        headers["content-range"] = f"bytes {start}-{size - 1}/{size}"
    content: Iterator[bytes] = files.read_chunks(full_path, start=start)
    if range_match is not None and start >= size:
        status, content = 416, iter(())
        headers["content-range"] = f"bytes */{size}"
    headers["content-length"] = str(max(0, size - start))
    return StreamingResponse(
        content, status_code=status, headers=headers, media_type="application/octet-stream"
    )
