"""Folders of files from other tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.sources import SourceFrame
from featurestore.store import FeatureStore


@pytest.fixture
def lake(empty_store: FeatureStore, tmp_path: Path) -> Callable[..., SourceFrame]:
    """Return a function that writes files and reads them as one table."""
    number = iter(range(1000))

    def read(files: dict[str, str | bytes], **options: Any) -> SourceFrame:
        folder = tmp_path / f"lake_{next(number)}"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        empty_store.add_source(folder.name, str(folder))
        frame = empty_store.read_source(folder.name, **options)
        assert isinstance(frame, SourceFrame)
        return frame

    return read
