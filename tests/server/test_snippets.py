"""Every snippet that a page offers runs as it is, in an empty folder."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import featurestore
from featurestore import transform as t
from featurestore.server import ServerSettings, create_app
from featurestore.server.access import changes
from featurestore.store import FeatureStore
from tests.server.browser import kind_of, listening
from tests.server.private_groups import PASSWORD, ROOT, sign_in, token_of
from tests.server.trained_runs import train

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
JOBS = """
import featurestore

doubled = featurestore.sql_job(
    "doubled", sql="select shop, seen, 2 * sales as twice from visits", inputs={"visits": "visits"},
    featuregroup="doubled", primary_key=["shop"], event_time="seen", schedule="0 * * * *",
    window="1h", start="2024-03-01T12:00Z", catchup=1,
)
watch = featurestore.monitor_job(
    "watch", featuregroup="visits", schedule="0 * * * *", window="1h", start="2024-03-01T12:00Z",
    volume=(0.5, 2.0), catchup=1,
)
"""
# Runs Python files as scripts, and command lines in the same process, which is faster.
DRIVER = """
import json, runpy, shlex, sys, traceback
from featurestore.cli import app

failures = []
for file in json.load(open(sys.argv[1])):
    try:
        if file.endswith(".py"):
            runpy.run_path(file, run_name="__main__")
            continue
        for line in open(file).read().splitlines():
            app(shlex.split(line)[1:], standalone_mode=False)
    except BaseException:
        failures.append(open(file).read() + "\\n" + traceback.format_exc())
print(json.dumps(failures), file=open(sys.argv[2], "w"))
"""


def fill(store: FeatureStore, folder: Path) -> None:
    """Create objects whose snippets differ: key types, nulls, lists, formats, labels, jobs."""
    visits: list[dict[str, Any]] = []
    for hour in range(24):
        for shop in ("a", "b"):
            timestamp = NOON + timedelta(minutes=30 + 60 * hour)
            sales = None if hour % 5 == 0 else float(hour)
            visits.append(
                {"shop": shop, "seen": timestamp, "sales": sales, "tags": [1, 2][: hour % 2]}
            )
    store.create_featuregroup(visits, "visits", primary_key="shop", event_time="seen")
    cities = [{"city": 7, "day": date(2024, 3, 1), "part": Decimal("1.50"), "people": 3}]
    store.create_featuregroup(
        cities, "cities", primary_key=["city", "day", "part"], statistics=False
    )
    store.create_featuregroup([{"x": 1.0, "y": 2.0}], "plain")
    between = {"column": "age", "max_value": 120}
    checks = [{"type": "expect_column_values_to_be_between", "kwargs": between}]
    store.create_featuregroup([{"id": 1, "age": 30}], "people", expectations=checks)
    store.insert_into_featuregroup([{"id": 2, "age": 999}], "people", validation="quarantine")
    labels = []
    for number in range(12):
        timestamp = NOON + timedelta(hours=3 + number)
        labels.append({"shop": "ab"[number % 2], "asked_at": timestamp, "good": number % 3 == 0})
    store.create_featuregroup(labels, "asked", primary_key="shop", event_time="asked_at")
    frame = store.get_features(["visits.sales"], labels=labels)
    for name, options in {
        "with_nulls": {}, "in_parquet": {"data_format": "parquet"},
        "in_csv": {"data_format": "csv"}, "in_petastorm": {"data_format": "petastorm"},
        "compressed": {"compression": "GZIP"},
        "scaled": {"transformations": {"sales": t.impute("mean") | t.standardize()}},
    }.items():  # fmt: skip
        store.create_training_dataset(frame, name, label="good", progress=False, **options)
    lists = store.get_features(["visits.sales", "visits.tags"], labels=labels)
    store.create_training_dataset(lists, "with_lists", label="good", progress=False)
    store.create_feature_view("of_asked", features=["visits.sales"], labels="asked", label="good")
    store.create_feature_view("unlabeled", features=["visits.sales", "cities.people"])
    full = store.get_features(["visits.sales"], labels=labels).filter("sales is not null")
    store.create_training_dataset(full, "full", label="good", progress=False)
    train(store, "full", "seller")
    file = folder / "shop_jobs.py"
    file.write_text(JOBS)
    store.register_jobs(file)
    for name in ("doubled", "watch"):
        store.backfill_job(name, NOON, NOON + timedelta(hours=3))


def snippets_of(client: TestClient, starts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield page and code of every snippet on the pages reachable from some addresses."""
    waiting, visited_addresses = deque(starts), set()
    while waiting:
        address = waiting.popleft()
        if address in visited_addresses:
            continue
        visited_addresses.add(address)
        response = client.get(address)
        if not response.headers.get("content-type", "").startswith("text/html"):
            continue
        assert response.status_code == 200, (address, response.text[:300])
        for code in re.findall(
            r'class="code"><pre[^>]*><code>(.*?)</code>', response.text, re.DOTALL
        ):
            yield address, html.unescape(code)
        for link in re.findall(r'href="(/[^"?#]*)', response.text):
            is_object = kind_of(link) not in {kind_of(path) for path in ("/static/a", "/api/a")}
            if is_object and not link.startswith(("/lineage", "/search", "/account")):
                waiting.append(link)


def run_snippets(
    snippets: list[tuple[str, str]], folder: Path, **environment: str
) -> tuple[int, list[str]]:
    """Run snippets in an empty folder; return their number and the failures."""
    folder.mkdir()
    files: dict[str, str] = {}
    for number, (address, code) in enumerate(snippets):
        if " run tensorboard " in code:
            continue  # a server that does not end
        if "register" in code:
            # The page shows the definition first, to be saved under the name of the command.
            (folder / code.split()[-1]).write_text(files.pop(list(files)[-1]))
        suffix = "sh" if code.startswith("featurestore ") else "py"
        is_query = address == "/jobs/doubled" and code.startswith("select")
        if not is_query and code not in files.values():
            files[f"{number}.{suffix}"] = code
    for name, code in files.items():
        (folder / name).write_text(code)
    (folder / "driver.py").write_text(DRIVER)
    (folder / "files.json").write_text(json.dumps(list(files)))
    ended = subprocess.run(
        [sys.executable, "driver.py", "files.json", "failures.json"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return len(files), json.loads((folder / "failures.json").read_text())


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureStore]:
    folder = tmp_path_factory.mktemp("snippets")
    with featurestore.connect(folder / "a store") as store:
        fill(store, folder)
        yield store


def test_snippets_of_pages_run_on_their_objects(filled_store: FeatureStore, tmp_path: Path) -> None:
    client = TestClient(create_app(filled_store), base_url="http://localhost")
    starts = [
        "/",
        "/groups",
        "/datasets",
        "/views",
        "/jobs",
        "/monitors",
        "/experiments",
        "/models",
    ]
    starts += [
        "/basket?feature=visits@v1.sales&feature=cities.people",
        "/jobs/doubled/backfill?start=2024-03-02T12:00Z&end=2024-03-02T13:00Z",
        "/groups/cities/1/statistics?before=1",
    ]
    snippets = list(snippets_of(client, starts))
    number, failures = run_snippets(snippets, tmp_path / "elsewhere")
    assert not failures, "\n\n".join(failures)
    assert number >= 30
    codes = [code for _, code in snippets]
    assert any("'cities.people'" in code and "labels = [" in code for code in codes)
    assert any("nulls='mask'" in code for code in codes)
    assert any("compression_type='GZIP'" in code for code in codes)
    assert any("with dataset.petastorm_reader" in code for code in codes)


def test_snippets_of_server_with_sign_in_connect_to_it(
    filled_store: FeatureStore, tmp_path: Path
) -> None:
    changes.add_user(filled_store.session, ROOT, "wil", role="writer", password=PASSWORD)
    token = token_of(filled_store, "wil")["Authorization"].split()[1]
    settings = ServerSettings(auth=True)
    with listening(filled_store, settings) as address:
        client = TestClient(create_app(filled_store, settings), base_url=address)
        sign_in(client, "wil")
        starts = ["/groups/visits/1", "/groups/cities/1", "/datasets/with_nulls/1"]
        snippets = []
        for start in [*starts, "/basket?feature=visits@v1.sales"]:
            snippets += [snippet for snippet in snippets_of(client, [start]) if snippet[0] == start]
        assert all(address in code for _, code in snippets if "update_" not in code)
        _, failures = run_snippets(snippets, tmp_path / "elsewhere", FEATURESTORE_TOKEN=token)
    assert not failures, "\n\n".join(failures)


def test_snippets_of_empty_pages_run(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path / "empty") as store:
        client = TestClient(create_app(store), base_url="http://localhost")
        first = list(snippets_of(client, ["/"]))
        assert len(first) == 2  # the group, and a run of an experiment
        rows = [{"shop": "a", "seen": NOON, "sales": 1.0}]
        store.create_featuregroup(rows, "visits", primary_key="shop", event_time="seen")
        snippets = []
        for page in ("/datasets", "/views", "/jobs", "/monitors"):
            snippets += [snippet for snippet in snippets_of(client, [page]) if snippet[0] == page]
        number, failures = run_snippets([*first, *snippets], tmp_path / "elsewhere")
        assert not failures, "\n\n".join(failures)
        assert number == 6
        assert {job.name for job in store.get_jobs()} == {"daily_visits", "watch_visits"}
