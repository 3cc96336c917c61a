"""A bucket of its own for each test."""

from __future__ import annotations

import uuid

import pytest

from tests.object_server import ObjectServer


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    """The URI of an empty bucket."""
    return object_server.new_bucket(f"test-{uuid.uuid4().hex[:12]}")
