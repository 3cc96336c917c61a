"""What ``featurestore doctor`` says of a place in an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featurestore.storage import inspection, location
from featurestore.storage.objects import ObjectStorage
from tests.object_server import SECRET_KEY, ObjectServer


@pytest.fixture
def environment(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in object_server.options.items():
        monkeypatch.setenv(key.upper(), value)


def test_doctor_tries_what_a_store_needs(
    bucket: str, environment: None, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    place = f"{bucket}/team a"
    registry = f"sqlite:///{tmp_path}/cache.db"
    words = ("--location", place, "--registry", registry, "--output", "json", "doctor")
    found = {each["check"]: each for each in json.loads(command_line(*words).out)}
    tried = {name: each["state"] for name, each in found.items() if name.startswith("location")}
    assert tried == {
        "location: reach": "ok",
        "location: write": "ok",
        "location: conditional put": "ok",
        "location: clock": "ok",
        "location: delete": "ok",
    }
    storage, folder = location.storage_of(place)
    assert list(storage.list(folder)) == []


def test_doctor_says_what_is_wrong_and_what_to_set(
    bucket: str,
    environment: None,
    command_line: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET_KEY}-wrong")
    words = ("--location", f"{bucket}/a", "--output", "json", "doctor")
    found = {each["check"]: each for each in json.loads(command_line(*words, code=1).out)}
    assert found["location: reach"]["state"] == "problem"
    assert "SignatureDoesNotMatch" in found["location: reach"]["detail"]
    assert "credentials" in found["location: reach"]["hint"]
    assert "postgresql://" in found["registry"]["hint"]


def test_a_server_without_conditional_puts_is_found_out(
    bucket: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.use_options(bucket, object_server.options)
    monkeypatch.setattr(ObjectStorage, "put_new", ObjectStorage.put)
    found = {each.what: each for each in inspection.inspect(f"{bucket}/a")}
    assert not found["conditional put"].passed
    assert "If-None-Match" in str(found["conditional put"].hint)
