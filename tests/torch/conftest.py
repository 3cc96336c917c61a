"""Datasets for the PyTorch tests, which are skipped without PyTorch."""

from __future__ import annotations

import pytest

from tests.readers.conftest import Example, make_example

VARIANTS = ("tfrecord", "variable", "parquet")
# Numbers, lists and times; strings have other tests.
NUMBERS = ["row_id", "count", "small", "flag", "ratio", "vector", "moment", "label"]


@pytest.fixture(scope="session", params=VARIANTS)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset without nulls, in each layout."""
    return make_example(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def tfrecord(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset of random-access TFRecord."""
    return make_example(tmp_path_factory.mktemp("tfrecord-only"), "tfrecord")


@pytest.fixture(scope="session")
def with_nulls(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A dataset with nulls in most columns."""
    return make_example(tmp_path_factory.mktemp("nulls"), "tfrecord", nulls=True)
