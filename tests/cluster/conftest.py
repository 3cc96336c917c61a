"""One standalone cluster for all tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def load(name: str) -> Any:
    """Return a module of this folder that is not a test module."""
    spec = importlib.util.spec_from_file_location(
        f"featurestore_cluster_{name}", FOLDER / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def standalone() -> Any:
    """The module that starts clusters."""
    return load("standalone")


@pytest.fixture(scope="session")
def submitted() -> Any:
    """The submitted program as a module."""
    return load("submitted")


@pytest.fixture(scope="session")
def cluster(standalone: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running cluster with two workers, each of one core and 1 GiB."""
    with standalone.standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running
