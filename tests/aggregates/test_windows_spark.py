"""Aggregates over windows on Spark: the same bits."""

from __future__ import annotations

import pytest

from featurestore.testing.window_conformance import WindowConformance
from tests.on_spark import OnSpark

pytestmark = [pytest.mark.spark]


class TestSpark(OnSpark, WindowConformance):
    """The suite that both engines pass."""
