"""Control characters in stored text are escaped in the terminal.

No command passes on a control character.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import featurestore
from featurestore.cli.output import EscapingStream

pytestmark = pytest.mark.slow

# A colour, a window title, a cursor one line up, an 8-bit sequence, a line that overwrites itself,
# right to left.
HOSTILE = "\x1b[31mred\x1b]0;title\x07\x1b[1A\x9b2J\rover\u202etxt.exe"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

COMMANDS = [
    ["fg", "list"],
    ["fg", "show", "weather"],
    ["fg", "head", "weather"],
    ["fg", "history", "weather"],
    ["fg", "stats", "weather"],
    ["fg", "validate", "weather"],
    ["fg", "explain", "weather", "--key", f"origin={HOSTILE}"],
    ["fg", "compare", "weather#1", "weather#2"],
    ["features", "search", "red"],
    ["features", "get", "weather.note", "--include-keys"],
    ["features", "get", "weather.note", "--explain"],
    ["td", "list"],
    ["td", "show", "days"],
    ["td", "verify", "days"],
    ["job", "list"],
    ["job", "history", "demand"],
    ["job", "plan", "demand", "--start", "2024-01-01", "--end", "2024-01-02"],
]
FAILING = [
    ["fg", "show", HOSTILE],
    ["features", "get", HOSTILE],
    ["job", "run", "demand", "--window", "2024-01-01"],
]


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile")
    with featurestore.connect(folder / "store") as store:
        rows = pa.table({"origin": [HOSTILE, "LGA"], "t": [DAY] * 2, "note": [HOSTILE, "fine"]})
        tags = {"team": HOSTILE, "red": "b"}
        store.create_featuregroup(
            rows, "weather", primary_key="origin", event_time="t", description=HOSTILE, tags=tags,
            expectations=[
                {
                    "type": "expect_column_values_to_be_in_set",
                    "kwargs": {"column": "note", "value_set": [HOSTILE, "fine"]},
                }
            ],
        )  # fmt: skip
        store.insert_into_featuregroup(rows, "weather", mode="upsert")
        store.create_training_dataset(
            store.get_featuregroup("weather"), "days", label="note", description=HOSTILE, tags=tags,
            data_format="csv",
        )  # fmt: skip
        jobs = folder / "jobs.py"
        jobs.write_text(
            "import featurestore\n"
            "@featurestore.job(featuregroup='demand', event_time='t', schedule='0 0 * * *',\n"
            "    start='2024-01-01T00:00Z', inputs={'weather': 'weather'},\n"
            f"    description={HOSTILE!r})\n"
            "def demand(window, weather):\n"
            f"    raise ValueError({HOSTILE!r})\n"
        )
        store.register_jobs(jobs)
        with pytest.raises(featurestore.FeatureStoreError):
            store.run_job("demand", window=DAY)
    return str(folder / "store")


def test_cli_output_escapes_control_characters(
    location: str, command_line: Callable[..., Any], subtests: pytest.Subtests
) -> None:
    for words in COMMANDS:
        with subtests.test(ascii(" ".join(words))):
            text = command_line("--location", location, *words)
            assert not CONTROL.search(text.out + text.err)
            data = command_line("--location", location, *words, "--output", "json")
            assert not CONTROL.search(data.out + data.err)
            json.loads(data.out)


def test_cli_errors_escape_control_characters(
    location: str, command_line: Callable[..., Any], subtests: pytest.Subtests
) -> None:
    for words in FAILING:
        with subtests.test(ascii(" ".join(words))):
            for form in ([], ["--output", "json"]):
                output = command_line("--location", location, *words, *form, code=1)
                assert "[31mred" in output.err
                assert not CONTROL.search(output.out + output.err)


def test_cli_json_preserves_stored_text(location: str, command_line: Callable[..., Any]) -> None:
    printed = command_line("--location", location, "fg", "head", "weather", "--output", "json")
    assert {row["note"] for row in json.loads(printed.out)} == {HOSTILE, "fine"}


def test_show_escapes_control_characters(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    with featurestore.connect(location) as store:
        store.get_featuregroup("weather").show()
    assert not CONTROL.search(capsys.readouterr().out)


def test_escaping_stream_can_outlive_its_raw_stream() -> None:
    raw = io.StringIO()
    stream = EscapingStream(raw)
    stream.write(HOSTILE)
    assert not CONTROL.search(raw.getvalue())
    stream.close()
    assert not raw.closed
    raw.close()
    stream.close()  # as at the end of a program, where objects are collected in any order
