"""Secrets are given by reference, and no error repeats what might be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from featurestore.errors import ConfigurationError, InvalidArgument
from featurestore.model.secrets import parse_secret
from featurestore.storage.secrets import resolve_secret


def test_a_secret_is_read_where_its_reference_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "from the environment")
    (tmp_path / "hook").write_text("from a file\n")
    assert resolve_secret(parse_secret("env:HOOK")) == "from the environment"
    assert resolve_secret(parse_secret(f"file:{tmp_path}/hook")) == "from a file"


@pytest.mark.parametrize("given", ["hunter2", "env:", "env:A B", "file:", "vault:x", ""])
def test_what_is_no_reference_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parse_secret(given)
    assert "hunter2" not in str(error.value)
    assert "env:NAME" in str(error.value)


@pytest.mark.parametrize("reference", ["env:NOT_THERE_AT_ALL", "file:/no/such/file"])
def test_a_secret_that_is_not_there_is_named_by_its_reference(reference: str) -> None:
    with pytest.raises(ConfigurationError, match=reference):
        resolve_secret(parse_secret(reference))


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match="empty"):
        resolve_secret(parse_secret(f"file:{tmp_path}/empty"))
