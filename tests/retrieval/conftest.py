"""Count the random cases in which engines agreed with the oracle.

The run's last lines add them up.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    # Noted on the test, not counted here: under xdist only what a report carries reaches the
    # process that sums up.
    before = _cases()
    yield
    for engine, count in (_cases() - before).items():
        item.user_properties.append((f"random cases on {engine}", count))


def _cases() -> Counter[str]:
    suite = sys.modules.get("featurestore.testing.retrieval_conformance")
    return Counter(getattr(suite, "CASES", {}))
