"""Commands for feature groups: tables, stable JSON, and one-line errors with a hint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.store import FeatureStore
from tests.flights import MIDNIGHT, weather

Run = Callable[..., Any]


@pytest.fixture
def location(flights_copy: FeatureStore) -> str:
    """A store of flights in which a row of the weather was written again."""
    flights_copy.insert_into_featuregroup(weather().slice(0, 1), "weather", mode="upsert")
    return flights_copy.location


@pytest.fixture
def run(location: str, command_line: Callable[..., Any]) -> Run:
    """Run a command; return its output, parsed if it is JSON."""

    def call(*words: str, code: int = 0, as_json: bool = False) -> Any:
        form = ["--output", "json"] if as_json else []
        printed = command_line("--location", location, *words, *form, code=code)
        text = printed.out if code == 0 else printed.err
        return json.loads(text) if as_json else text

    return call


def test_fg_list_shows_every_group(run: Run) -> None:
    assert "weather" in run("fg", "list")
    *others, last = run("fg", "list", as_json=True)
    assert [group["name"] for group in others] == ["flights", "planes"]
    assert last == {
        "name": "weather",
        "version": 1,
        "delta_version": 2,
        "rows": 72,
        "features": 2,
        "primary_key": ["origin"],
        "event_time": "hour",
        "description": "Hourly weather",
    }


def test_fg_show_prints_definition(run: Run) -> None:
    document = run("fg", "show", "weather", as_json=True)
    assert document["tags"] == {"team": "sky"}
    assert document["ttl"] == "1d"
    assert document["columns"] == [
        {"name": "origin", "type": "string", "role": "key", "description": ""},
        {"name": "hour", "type": "timestamp[us, tz=UTC]", "role": "time", "description": ""},
        {"name": "temp", "type": "double", "role": "feature", "description": ""},
        {"name": "wind", "type": "double", "role": "feature", "description": ""},
    ]
    text = run("fg", "show", "weather")
    assert "Hourly weather" in text
    assert "timestamp[us, tz=UTC]" in text


def test_fg_head_prints_rows(run: Run) -> None:
    assert "only showing top 1 row" in run("fg", "head", "weather", "-n", "1")
    assert len(run("fg", "head", "planes", as_json=True)) == 4
    assert len(run("fg", "head", "planes@v1", "--as-of", "1", as_json=True)) == 4


def test_fg_history_lists_commits(run: Run) -> None:
    document = run("fg", "history", "weather", as_json=True)
    assert [
        (entry["delta_version"], entry["operation"], entry["rows_in"], entry["rows_out"])
        for entry in document
    ] == [
        (2, "upsert", 1, 1),
        (1, "create", 72, 0),
    ]
    assert set(document[0]) >= {"timestamp", "rows", "run_id", "validation", "unique", "inputs"}
    assert "upsert" in run("fg", "history", "weather")


def test_fg_stats_prints_column_statistics(run: Run) -> None:
    assert "temp" in run("fg", "stats", "weather")
    document = run("fg", "stats", "weather", as_json=True)
    assert document["rows"] == 72


def test_fg_validate_checks_stored_data(run: Run) -> None:
    assert "no_null_keys" in run("fg", "validate", "weather")
    assert run("fg", "validate", "weather", as_json=True)["success"] is True


def test_fg_explain_shows_selected_row(run: Run) -> None:
    assert "JFK" in run(
        "fg", "explain", "weather", "--key", "origin=JFK", "--at", "2013-01-01T12:00Z"
    )
    assert (
        run(
            "fg",
            "explain",
            "weather",
            "--key",
            "origin=JFK",
            "--at",
            "2013-01-01T12:00Z",
            as_json=True,
        )["group"]
        == "weather"
    )
    assert "is not column=value" in run("fg", "explain", "weather", "--key", "JFK", code=1)


def test_fg_explain_window_shows_counted_rows(run: Run, location: str) -> None:
    times = [MIDNIGHT + timedelta(hours=hour) for hour in (0, 5, 30, 40)]
    gusts = pa.table({"origin": ["JFK"] * 4, "t": times, "speed": [20.0, 12.5, 9.0, None]})
    with featurestore.connect(location) as store:
        store.create_featuregroup(gusts, "gusts", primary_key="origin", event_time="t")
    words = ["fg", "explain", "gusts", "--key", "origin=JFK", "--at", "2013-01-02T16:00Z"]
    shown = run(*words, "--window", "gusts.speed|sum|36h")
    assert "speed_sum_36h" in shown
    assert "counted (2 rows)" in shown
    assert "excluded: 1 outside the window" in shown
    assert "excluded: 1 without a value in speed" in shown
    document = run(*words, "--window", "gusts.speed|sum|36h", as_json=True)
    assert document["value"] == 21.5
    assert [row["speed"] for row in document["rows"]] == [9.0, 12.5]
    for text, actual in (
        ("gusts.speed|summ|36h", "'sum'"),
        ("weather.temp|sum|36h", "not of 'gusts'"),
        ("gusts.speed", "group.column|sum|7d"),
    ):
        assert actual in run(*words, "--window", text, code=1)
    words = ["features", "get", "gusts.speed|sum|36h", "--labels", "weather"]
    assert "speed_sum_36h = sum(speed) over (hour - 36h, hour]" in run(*words, "--explain")
    first_hour = [row for row in run(*words, "-n", "72", as_json=True) if "T00:00" in row["hour"]]
    sums = {row["origin"]: row["speed_sum_36h"] for row in first_hour}
    assert sums == {"EWR": None, "JFK": 20.0, "LGA": None}


def test_fg_compare_reports_drift_between_delta_versions(run: Run) -> None:
    assert "0 of 2 features drifted" in run("fg", "compare", "weather#1", "weather#2")
    assert run("fg", "compare", "weather#1", "weather@v1", as_json=True)
    assert "has no Delta version" in run("fg", "compare", "weather#x", "weather", code=1)


def test_fg_compact_and_vacuum_report_results(run: Run) -> None:
    assert run("fg", "compact", "weather", as_json=True)["rows"] == 72
    assert run("fg", "vacuum", "weather", "--retain", "7d", as_json=True) == {
        "removed": 0,
        "files": [],
    }


def test_cli_error_prints_one_line_and_hint(run: Run) -> None:
    assert run("fg", "show", "wether", code=1) == (
        "error: Unknown feature group 'wether'. Available: 'flights', 'planes', 'weather'.\n"
        "hint: did you mean weather?\n"
    )
    document = run("fg", "show", "wether", code=1, as_json=True)
    assert document["error"]["type"] == "FeatureGroupNotFound"
    assert "hint" in document["error"]


@pytest.mark.parametrize(
    "words", [("fg", "nothing"), ("fg", "show"), ("fg", "list", "--nope"), ("nothing",)]
)
def test_cli_wrong_usage_exits_with_2(run: Run, words: tuple[str, ...]) -> None:
    assert "Usage:" in run(*words, code=2)


def test_registry_rebuild_reports_restored_and_missing_parts(run: Run, location: str) -> None:
    Path(location, "registry.db").unlink()
    document = run("registry", "rebuild", as_json=True)
    assert document["featuregroups"] == ["flights@v1", "planes@v1", "weather@v1"]
    assert "the audit log" in document["not_restored"]
    assert run("fg", "list", as_json=True)[-1]["name"] == "weather"
    content = run("registry", "upgrade", as_json=True)
    assert content["before"] == content["now"]


def test_init_creates_store_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEATURESTORE_LOCATION", raising=False)
    assert "my-store" in command_line("init", "my-store").out
    assert (tmp_path / "my-store" / "registry.db").exists()
    assert featurestore.connect().location == str(tmp_path / "my-store")


def test_doctor_reports_state_of_each_check(run: Run) -> None:
    document = {entry["check"]: entry for entry in run("doctor", as_json=True)}
    assert document["python"]["state"] == "ok"
    assert document["location"]["state"] == "ok"
    assert document["registry"]["detail"].startswith("revision")
    assert "duckdb" in document["engines"]["detail"]
    assert set(document["duckdb"]) == {"check", "state", "detail", "hint"}


def test_installed_command_runs(location: str) -> None:
    script = Path(sys.executable).with_name("featurestore")
    if not script.exists():
        pytest.skip("the command is not installed beside this interpreter")
    result = subprocess.run(
        [str(script), "fg", "list", "--location", location, "--output=json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)[-1]["name"] == "weather"
    assert subprocess.run(
        [str(script), "--version"], capture_output=True, check=True
    ).stdout.startswith(b"featurestore ")


def test_fg_list_limit_and_page_split_results(location: str, run: Run) -> None:
    with featurestore.connect(location) as store:
        for number in range(4):
            store.create_featuregroup([{"x": number}], f"group{number}", validation="off")
    pages = [run("fg", "list", "--limit", "2", "--page", str(page)) for page in range(1, 5)]
    assert ["more entries: --page" in page for page in pages] == [True, True, True, False]
    assert ["weather" in page for page in pages] == [False, False, False, True]
    names = [group["name"] for group in run("fg", "list", as_json=True)]
    assert names == ["flights", "group0", "group1", "group2", "group3", "planes", "weather"]
    second = run("fg", "list", "--limit", "2", "--page", "2", as_json=True)
    assert [group["name"] for group in second] == ["group1", "group2"]
    assert "more entries" in run("features", "search", "group", "--limit", "3")
    newest = run("fg", "history", "weather", "--limit", "1", as_json=True)
    assert [commit["delta_version"] for commit in newest] == [2]


def test_cli_tables_fit_80_columns_unless_wide(location: str, run: Run) -> None:
    with featurestore.connect(location) as store:
        # A stale dataset adds a column to the list, which then has 81 characters.
        store.delete_training_dataset("late_flights", version=1)
        for name in ("destination_weather", "origin_demand"):
            days = [MIDNIGHT + timedelta(hours=hour) for hour in range(1_200)]
            table = pa.table(
                {
                    "destination_airport": ["JFK"] * 1_200,
                    "observed_at": days,
                    "wind_speed_in_knots": [hour % 700 * 0.37 for hour in range(1_200)],
                    "kind": [f"kind {hour % 700}" for hour in range(1_200)],
                }
            )
            store.create_featuregroup(
                table,
                name,
                primary_key="destination_airport",
                event_time="observed_at",
                description="Hourly weather of the airports that flights of the year go to",
            )
        store.create_training_dataset(
            store.get_featuregroup("origin_demand"), "late_flights_by_origin",
            data_format="parquet", splits={"train": 0.8, "validate": 0.1, "test": 0.1},
        )  # fmt: skip
    listings = (
        ["fg", "list"],
        ["fg", "history", "origin_demand"],
        ["fg", "stats", "origin_demand"],
        ["fg", "validate", "origin_demand"],
        ["td", "list"],
    )
    for words in listings:
        lines = run(*words).splitlines()
        assert max(map(len, lines)) <= 80, words
        wide = run(*words, "--wide").splitlines()
        assert max(map(len, wide)) > 80, words
