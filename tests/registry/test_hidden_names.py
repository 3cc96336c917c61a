"""Names in log text are hidden with one registry read."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.registry import access
from featurestore.registry.database import ChangeWatch
from featurestore.registry.stored_errors import LogRedactor, text_for_readers
from featurestore.store import FeatureStore

NAMES = ["salaries", "visits", "trips", "unknown"]
WORDS = st.sampled_from([*NAMES, *map(repr, NAMES), "'visits.pay'", "there are", "and", ","])
# A string, a group whose privacy changes, or a group to create.
STEPS = st.lists(
    st.one_of(
        st.lists(WORDS, max_size=6).map(lambda words: ("text", " ".join(words))),
        st.tuples(st.sampled_from(["hide", "show"]), st.sampled_from(NAMES[:2])),
    ),
    max_size=12,
)


@pytest.fixture
def filled(tmp_path: Path, registry_url: str | None) -> FeatureStore:
    store = featurestore.connect(tmp_path / "store", registry=registry_url)
    for group in NAMES[:3]:
        store.create_featuregroup([{"k": 1}], group, primary_key="k")
    return store


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(STEPS)
def test_unlisted_texts_equal_single_text_results(
    filled: FeatureStore, steps: list[tuple[str, str]]
) -> None:
    registry = filled.session.registry
    with LogRedactor(registry, allowed_names=["trips"]) as without_names:
        for step, value in steps:
            if step == "text":
                text = text_for_readers(registry, value, allowed_names=["trips"])
                assert without_names(value) == text.message
            else:
                with registry.transaction() as connection:
                    access.set_private(connection, value, step == "hide")


def test_unlisted_texts_query_registry_once_per_state(filled: FeatureStore) -> None:
    registry = filled.session.registry
    statements: list[str] = []
    sa.event.listen(
        registry._engine,
        "before_cursor_execute",
        lambda *arguments: statements.append(arguments[2]),
    )
    with registry.transaction() as connection:
        access.set_private(connection, "salaries", True)
    watch = ChangeWatch(registry)
    with LogRedactor(registry, allowed_names=[]) as without_names:
        # Postgres counts the transactions of all databases, so another test may change the state.
        for _ in range(10):
            state = watch.state()
            first = without_names("a row of 'visits' and salaries")
            count = len(statements)
            for _ in range(100):
                assert without_names("a row of 'visits' and salaries") == first
            new_statements = len(statements) - count
            if watch.state() == state:
                break
        watch.close()
        assert new_statements == 0


def test_unlisted_texts_unreadable_registry_removes_quoted_names(
    flights_copy: FeatureStore,
) -> None:
    registry = flights_copy.session.registry
    with LogRedactor(registry, allowed_names=["planes"]) as without_names:
        flights_copy.close()
        Path(flights_copy.location, "registry.db").write_bytes(b"damaged" * 100)
        assert without_names("'flights' of 'planes'") == "[...] of 'planes'"
