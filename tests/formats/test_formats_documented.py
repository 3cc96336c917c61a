"""The statements of docs/formats.md and docs/tfrecord-layout.md hold.

Their code runs, their JSON is what comes out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore import _current
from featurestore.plugins.format import DatasetFormat
from featurestore.testing.format_conformance import FormatConformance, build_layout, write
from featurestore_connectors.tfrecord import TFRecordFormat

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def code(page: str, title: str) -> str:
    """Return the code block of a page that starts with a comment with this title."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL):
        if block.startswith(f"# {title}\n"):
            return str(block)
    raise LookupError(title)


@pytest.fixture(scope="module")
def arrow_format(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page's format, installed as a package would be."""
    site = tmp_path_factory.mktemp("site")
    (site / "arrow_format.py").write_text(code("formats.md", "arrow_format.py"), encoding="utf-8")
    group = re.search(
        r'\[project.entry-points."(.*)"\]\n(.*)', code("formats.md", "pyproject.toml")
    )
    assert group is not None
    information = site / "arrow_format-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: arrow-format\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(
        f"[{group[1]}]\n{group[2].replace(chr(34), '')}\n"
    )
    yield site
    sys.modules.pop("arrow_format", None)


@pytest.fixture
def dataset_format(arrow_format: Path) -> DatasetFormat:
    if "arrow_format" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "arrow_format", arrow_format / "arrow_format.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules["arrow_format"] = module
        spec.loader.exec_module(module)
    result: DatasetFormat = sys.modules["arrow_format"].ArrowFormat()
    return result


class TestTheFormatInTheDocs(FormatConformance):
    pass


def test_documented_format_has_forty_lines() -> None:
    lines = code("formats.md", "arrow_format.py").splitlines()[1:]
    assert len([line for line in lines if line.strip()]) <= 40


def test_documented_format_is_loaded_by_name(arrow_format: Path, tmp_path: Path) -> None:
    script = f"""
import featurestore, pyarrow as pa
store = featurestore.connect({str(tmp_path / "store")!r})
rows = pa.table({{"n": range(100), "x": [n / 8 for n in range(100)]}})
dataset = store.create_training_dataset(rows, "numbers", data_format="arrow", splits={{"train": 0.8, "test": 0.2}})
assert dataset.verify().ok
print(dataset.manifest.data_format, sum(dataset.num_rows(split) for split in dataset.splits))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(arrow_format), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert ran.stdout.split()[-2:] == ["arrow", "100"], ran.stderr


@pytest.fixture
def shard(tmp_path: Path) -> tuple[str, Any, pa.Table]:
    texts = ["fifteen letters", "fourteen lettr", None, "thirteen lett"] * 3
    table = pa.table({"n": [1, 2, 3, 4] * 3, "text": texts})
    layout = build_layout(TFRecordFormat(), table)
    return write(TFRecordFormat(), tmp_path, table, layout)[0], layout, table


def test_documented_layout_equals_written_layout(shard: tuple[str, Any, pa.Table]) -> None:
    text = (DOCS / "tfrecord-layout.md").read_text(encoding="utf-8")
    matches = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert matches is not None
    assert json.loads(matches[1]) == shard[1]


def test_documented_reader_reads_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_current, "store", featurestore.connect(tmp_path))
    text = (DOCS / "tfrecord-layout.md").read_text(encoding="utf-8")
    matches = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert matches is not None
    names: dict[str, Any] = {}
    exec(matches[1], names)
    read = zip(names["delay"].tolist(), names["missing"].tolist(), strict=True)
    assert sorted(read) == [(-2.0, False), (0.0, True), (1.5, False)]
