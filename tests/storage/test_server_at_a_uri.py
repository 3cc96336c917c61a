"""The web registry of a store at a URI: every linked page opens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.storage.jobs_at_a_uri import RANGE, filled
from tests.storage.stores import StoreLocation, hdfs_in_soak

pytest.importorskip("fastapi")

_HREF = re.compile(r'href="(/[^"#]*)"')


@hdfs_in_soak
def test_server_remote_location_pages_open(store_location: StoreLocation, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    from featurestore.server import create_app

    store = filled(store_location.connect(), tmp_path / "jobs")
    store.backfill_job("tips", *RANGE)
    store.create_training_dataset(store.get_features(["trips.tip"]), "d")
    waiting, visited_pages = ["/"], set()
    with TestClient(create_app(store), base_url="http://localhost") as client:
        while waiting:
            page = waiting.pop()
            if page in visited_pages or "?" in page:
                continue
            visited_pages.add(page)
            response = client.get(page)
            assert response.status_code == 200, page
            if "text/html" in response.headers["content-type"]:
                waiting.extend(_HREF.findall(response.text))
        log = client.get(f"/jobs/tips/runs/{store.get_runs('tips')[0].run_id}/log")
        assert "tips, 1 windows" in log.text
        assert client.get("/metrics").status_code == 200
    assert {"trips", "tips", "d"} <= {name for page in visited_pages for name in page.split("/")}
