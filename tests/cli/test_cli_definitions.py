"""Commands that change a store: definition files, deletion of groups, stages of models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.errors import FeatureViewWarning
from featurestore.store import FeatureStore

VIEW = """
name = "trips"
features = ["weather.temp"]
labels = "flights"
label = "late"
label_time = "departure"

[transformations]
temp = "clip(0, high=1.0) | standardize()"
"""
DATASET = """
name = "trips"
view = "trips@v1"
data_format = "parquet"
key = ["flight"]

[splits]
train = 0.5
test = 0.5
"""
TIME_SPLIT = """
name = "by_day"
featuregroup = "flights"
key = "flight"
data_format = "csv"

[splits]
column = "departure"
past = ["", "2013-01-01T12:00Z"]
rest = ["2013-01-01T12:00Z", ""]
"""


@pytest.fixture
def run(flights_copy: FeatureStore, command_line: Callable[..., Any]) -> Callable[..., Any]:
    """Run a command on a store of flights; return its JSON, or its error message."""
    location = flights_copy.location

    def call(*words: str, code: int = 0) -> Any:
        printed = command_line("--location", location, *words, "--output", "json", code=code)
        return json.loads(printed.out) if code == 0 else printed.err

    return call


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_definition_files_create_view_and_datasets(run: Callable[..., Any], tmp_path: Path) -> None:
    view = run("fv", "create", write(tmp_path / "view.toml", VIEW))
    assert (view["name"], view["version"], view["labels"]) == ("trips", 1, "flights@v1")
    dataset = run("td", "create", write(tmp_path / "dataset.toml", DATASET))
    assert (dataset["version"], dataset["rows"]) == (1, 40)
    details = run("td", "show", "trips@v1")
    assert "clip(low=0.0, high=1.0) | standardize()" in json.dumps(details["transformations"])
    by_day = run("td", "create", write(tmp_path / "by_day.toml", TIME_SPLIT))
    assert by_day["rows"] == 40
    assert set(run("td", "show", "by_day")["shards"]) == {"past", "rest"}


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("fv", VIEW.replace("labels =", "lables ="), "did you mean labels"),
        ("fv", VIEW.replace('name = "trips"', ""), "has no 'name'"),
        ("fv", VIEW.replace("standardize()", "function(print)"), "unknown step 'function'"),
        ("fv", VIEW.replace("clip(0, high=1.0)", "open('x')"), "unknown step 'open'"),
        ("fv", VIEW.replace("clip(0, high=1.0)", "__import__('os').x()"), "available: "),
        ("fv", VIEW.replace("clip(0, high=1.0)", "clip(a=1)"), "is not a chain"),
        ("fv", "name = ", "is not valid TOML"),
        ("td", DATASET.replace("view =", "wiew ="), "needs either view or featuregroup"),
        ("td", DATASET + "\n[tags]\nx = 1", "is not a pair of strings"),
        ("td", TIME_SPLIT.replace('past = ["", ', "past = ["), "a start and an end"),
    ],
)
def test_definition_file_mistakes_name_the_key(
    run: Callable[..., Any], tmp_path: Path, command: str, text: str, message: str
) -> None:
    run("fv", "create", write(tmp_path / "view.toml", VIEW))
    error = run(command, "create", write(tmp_path / "wrong.toml", text), code=1)
    assert message in error
    assert "Traceback" not in error


def test_fg_delete_needs_version_and_force(run: Callable[..., Any], tmp_path: Path) -> None:
    run("fv", "create", write(tmp_path / "view.toml", VIEW))
    run("td", "delete", "late_flights@v1")
    assert '"featurestore fg delete weather@v1' in run("fg", "delete", "weather", code=1)
    assert "trips" in run("fg", "delete", "weather@v1", code=1)
    with pytest.warns(FeatureViewWarning, match="can no longer be read"):
        deleted = run("fg", "delete", "weather@v1", "--force")
    assert deleted == {"deleted": {"name": "weather", "version": 1}}
    assert [group["name"] for group in run("fg", "list")] == ["flights", "planes"]


def test_version_option_after_a_command_is_explained(run: Callable[..., Any]) -> None:
    assert "NAME@v2" in run("fg", "show", "weather", "--version", "1", code=2)
