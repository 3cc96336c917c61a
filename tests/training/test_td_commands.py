"""Output and exit codes of ``featurestore td``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore import transform as t

pytestmark = pytest.mark.slow

Example = Callable[..., pa.Table]
Run = Callable[..., Any]
RULES = {"label": "label", "splits": {"train": 0.8, "test": 0.2}, "seed": 1, "shards": 2}


@pytest.fixture
def location(tmp_path: Path, example: Example) -> str:
    """A store with a group and two versions of a dataset; the second has 20 more rows."""
    path = str(tmp_path / "store")
    with featurestore.connect(path) as store:
        store.create_featuregroup(example(400), "facts", primary_key=["user", "at"])
        store.create_training_dataset(store.get_featuregroup("facts"), "d", **RULES)  # type: ignore[arg-type]
        store.insert_into_featuregroup(example(420).slice(400), "facts")
        store.create_training_dataset(store.get_featuregroup("facts"), "d", **RULES)  # type: ignore[arg-type]
        store.create_training_dataset(example(30), "loose", key="at")
    return path


@pytest.fixture
def run(location: str, command_line: Callable[..., Any]) -> Run:
    """Run a command and check its exit code.

    Returns what it printed, parsed when it is JSON.
    """

    def call(*words: str, code: int = 0, as_json: bool = False) -> Any:
        form = ["--output", "json"] if as_json else []
        printed = command_line("--location", location, *words, *form, code=code)
        text = printed.out or printed.err
        return json.loads(text) if as_json else text

    return call


def test_td_verify_damaged_dataset_exits_1(run: Run, location: str) -> None:
    assert "ok" in run("td", "verify", "d")
    assert run("td", "verify", "d", "--recompute", as_json=True)["recomputed"]
    shard = next(Path(location, "trainingdatasets", "d", "v2", "train").glob("tfrecord-*"))
    data = bytearray(shard.read_bytes())
    data[1000] ^= 4
    shard.write_bytes(data)
    printed = run("td", "verify", "d", code=1)
    assert "DAMAGED" in printed
    assert f"train/{shard.name} at byte" in printed
    document = run("td", "verify", "d", code=1, as_json=True)
    assert not document["ok"]
    assert {problem["file"] for problem in document["problems"]} == {f"train/{shard.name}"}
    assert run("td", "verify", "d@v1", as_json=True)["ok"]


def test_td_verify_prints_reason_for_irreproducible_dataset(run: Run) -> None:
    assert "cannot be recomputed: the data was a dataframe" in run(
        "td", "verify", "loose", "--recompute", code=1
    )
    assert "ok" in run("td", "verify", "loose")
    assert "dataframe" in run("td", "show", "loose", as_json=True)["not_reproducible_because"]


def test_td_diff_exit_code_1_for_different_rows(run: Run) -> None:
    printed = run("td", "diff", "d", code=1)
    assert "source facts@v1: Delta version 1 -> 2" in printed
    document = run("td", "diff", "d@v1", "d@v2", code=1, as_json=True)
    assert sum(split["added"] for split in document["splits"].values()) == 20
    assert sum(split["removed"] + split["changed"] for split in document["splits"].values()) == 0
    assert "the same rows" in run("td", "diff", "d@v2", "d@v2")
    assert "no version before 1" in run("td", "diff", "loose", code=1)


def test_td_show_prints_label_proportions_layout_and_losses(run: Run) -> None:
    document = run("td", "show", "d", as_json=True)
    for split in ("train", "test"):
        shares = document["label_proportions"][split]["label"]
        assert sum(shares.values()) == pytest.approx(1)
        counts = document["labels"][split]["label"]
        assert shares["1"] == pytest.approx(counts["1"] / sum(counts.values()))
    assert document["layout"] == "fixed"
    assert document["losses"] == {}


def test_td_show_prints_transformations(
    run: Run, location: str, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    with featurestore.connect(location) as store:
        chains = {"label": t.vocabulary() | t.one_hot()}
        store.create_training_dataset(
            example(60), "coded", label="label", key="at", transformations=chains
        )
    capsys.readouterr()
    document = run("td", "show", "coded", as_json=True)["transformations"]
    assert [(step["input"], step["output"]) for step in document] == [("label", "float32 [3]")]
    printed = run("td", "show", "coded")
    assert "transformations:\n" in printed
    assert "one_hot()" in printed
    assert "transformations" not in run("td", "show", "d", as_json=True)


def test_td_clean_removes_leftovers_of_killed_exports(run: Run, location: str) -> None:
    dead = Path(location, "trainingdatasets", "d", "v7", "train")
    dead.mkdir(parents=True)
    staged = Path(location, "_staging", "0123456789abcdef" * 2, "rows")
    staged.mkdir(parents=True)
    removed = [entry["removed"] for entry in run("td", "clean", as_json=True)]
    assert removed == [str(dead.parent), str(staged.parent)]
    assert not dead.parent.exists()
    assert not staged.parent.exists()
    assert "nothing to remove" in run("td", "clean")
    assert [row["version"] for row in run("td", "list", as_json=True)] == [1, 2, 1]


def test_td_commands_unknown_dataset_exit_1_with_alternatives(run: Run) -> None:
    assert "loose" in run("td", "verify", "absent", code=1)
    run("td", "delete", "d@v1")
    assert [row["version"] for row in run("td", "list", as_json=True)] == [2, 1]
    assert "featurestore td delete d@v1" in run("td", "delete", "d", code=1)
