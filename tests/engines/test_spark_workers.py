"""Spark tasks reuse running Python workers."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from featurestore_connectors.spark_delta.relations import clear_archive_importers


def test_environment_archives_are_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other archives are kept, since a program may replace them."""
    for name in ("given", "brought"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(f"fs_{name}/__init__.py", "")
            archive.writestr(f"fs_{name}/inner.py", "")
            archive.writestr(f"fs_{name}/later.py", "")
        monkeypatch.syspath_prepend(str(tmp_path / f"{name}.zip"))
        importlib.import_module(f"fs_{name}.inner")
    monkeypatch.setenv("PYTHONPATH", f"/somewhere:{tmp_path / 'given.zip'}")

    def remembered(name: str) -> list[str]:
        archive = str(tmp_path / f"{name}.zip")
        return [path for path in sys.path_importer_cache if path.startswith(archive)]

    before = remembered("brought")
    assert len(remembered("given")) == len(before) == 2
    clear_archive_importers()
    assert (remembered("given"), remembered("brought")) == ([], before)
    importlib.import_module("fs_given.later")
    assert remembered("given")
