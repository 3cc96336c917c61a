"""The web registry of a store in a bucket: every page that it links to answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.storage.stores import Connect
from tests.storage.test_jobs_on_s3 import RANGE, filled

pytest.importorskip("fastapi")

_HREF = re.compile(r'href="(/[^"#]*)"')


def test_every_page_of_a_store_on_s3_answers(connect: Connect, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from featurestore.server import create_app

    store = filled(connect(), tmp_path / "jobs")
    store.backfill_job("tips", *RANGE)
    store.create_training_dataset(store.get_features(["trips.tip"]), "d")
    waiting, seen = ["/"], set()
    with TestClient(create_app(store), base_url="http://localhost") as client:
        while waiting:
            page = waiting.pop()
            if page in seen or "?" in page:
                continue
            seen.add(page)
            answer = client.get(page)
            assert answer.status_code == 200, page
            if "text/html" in answer.headers["content-type"]:
                waiting.extend(_HREF.findall(answer.text))
        log = client.get(f"/jobs/tips/runs/{store.get_runs('tips')[0].run_id}/log")
        assert "tips, 1 windows" in log.text
        assert client.get("/metrics").status_code == 200
    assert {"trips", "tips", "d"} <= {name for page in seen for name in page.split("/")}
