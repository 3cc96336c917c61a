"""The code of the streams page runs, with a broker if it needs one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import featurestore
from featurestore import _current
from tests.pages.pages import ROOT, run_page
from tests.streams.topics import Broker


def test_streams_page_code_runs(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(2, name="clicks")
    click = b'{"user": "u1", "page": "p1", "at": "2024-01-01T00:00:00Z"}'
    broker.send(topic, [click, b"poison"])
    text = (ROOT / "docs/how-to/streams.md").read_text(encoding="utf-8")
    assert "kafka://broker-1:9092" in text
    page = tmp_path / "streams.md"
    page.write_text(text.replace("kafka://broker-1:9092", broker.uri), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(_current, "store", None)
    run_page(page)
    with closing(featurestore.connect(tmp_path / "my-store")) as store:
        assert store.get_featuregroup("clicks").count() == 1
        assert store.get_featuregroup_quarantine("clicks").count() == 1
    broker.delete(topic)
