"""Secrets are references, and errors do not repeat possible secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from featurestore.errors import ConfigurationError, InvalidArgument
from featurestore.model.alert import Channel
from featurestore.model.names import parse_secret
from featurestore.storage.grants import acting_channel, grant, resolve_secret


@pytest.fixture(autouse=True)
def receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def resolved(reference: str) -> str:
    channel = acting_channel("/store", Channel("ops", "https://hooks", reference))
    grant(channel)
    return resolve_secret(parse_secret(reference), channel)


def test_secret_is_resolved_from_environment_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "from the environment")
    (tmp_path / "hook").write_text("from a file\n")
    assert resolved("env:HOOK") == "from the environment"
    assert resolved(f"file:{tmp_path}/hook") == "from a file"


@pytest.mark.parametrize("reference", ["hunter2", "env:", "env:A B", "file:", "vault:x", ""])
def test_parse_secret_invalid_reference_raises_without_value(reference: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parse_secret(reference)
    assert "hunter2" not in str(error.value)
    assert "env:NAME" in str(error.value)


@pytest.mark.parametrize("reference", ["env:NOT_THERE_AT_ALL", "file:/no/such/file"])
def test_missing_secret_error_contains_reference(reference: str) -> None:
    with pytest.raises(ConfigurationError, match=reference):
        resolved(reference)


def test_secret_from_empty_file_raises(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match="empty"):
        resolved(f"file:{tmp_path}/empty")


@pytest.mark.parametrize(
    "asks",
    [
        {"location": "/a copy of the store"},
        {"name": "other"},
        {"uri": "https://elsewhere"},
        {"reference": "env:AWS_SECRET_ACCESS_KEY"},
    ],
)
def test_resolve_secret_for_unregistered_target_raises(
    asks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    assert resolved("env:HOOK") == "hunter2"
    arguments = {
        "location": "/store",
        "name": "ops",
        "uri": "https://hooks",
        "reference": "env:HOOK",
    }
    arguments |= asks
    location, secret = arguments.pop("location"), arguments.pop("reference")
    channel = acting_channel(location, Channel(**arguments, secret=secret))
    with pytest.raises(ConfigurationError, match="registered on this machine") as error:
        resolve_secret(parse_secret(secret), channel)
    assert "hunter2" not in str(error.value)
