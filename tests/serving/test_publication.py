"""Publication of feature views: published values equal the retrieval at every instant."""

import warnings
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import time_machine
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import InvalidArgument
from tests.serving.online_reads import read_values, retrieve_values

NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
KEYS = ["a", "b", "c"]
INSTANTS = [NOON + timedelta(seconds=seconds) for seconds in (0, 59, 60, 61, 119, 120, 300, 4000)]


def rows_of(records, start=0):
    """Return rows of the group; offsets are minutes from noon."""
    return pa.table(
        {
            "key": pa.array([key for key, _, _, _ in records], pa.string()),
            "at": pa.array([NOON + timedelta(minutes=event) for _, event, _, _ in records], TIME),
            "known": pa.array(
                [NOON + timedelta(minutes=known) for _, _, known, _ in records], TIME
            ),
            "value": pa.array([value for *_, value in records], pa.int64()),
            "number": pa.array(range(start, start + len(records)), pa.int64()),
        }
    )


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.integers(-3, 2),
        st.integers(-3, 2),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=8,
)


def assert_published(store, view, instants=INSTANTS):
    keys = [(key,) for key in KEYS]
    assert read_values(store, view, keys, instants) == retrieve_values(
        view, keys, ["key"], instants
    )


CHANGES = st.one_of(
    st.tuples(st.just("append"), RECORDS),
    st.tuples(st.just("upsert"), RECORDS),
    st.tuples(st.just("delete"), st.sampled_from([f"key = '{key}'" for key in KEYS])),
    st.tuples(st.just("delete"), st.sampled_from(["value = 1", "number % 2 = 0", "true"])),
    st.tuples(st.just("compact"), st.none()),
)


def apply_change(store, kind, argument, start):
    if kind == "delete":
        store.delete_from_featuregroup("g", where=argument)
    elif kind == "compact":
        store.compact_featuregroup("g")
    else:
        rows = rows_of(argument, start)
        if kind == "upsert":
            # One row of each key and time: an upsert refuses others.
            last = {record[:2]: row for row, record in enumerate(argument)}
            rows = rows.take(pa.array(list(last.values())))
        store.insert_into_featuregroup(rows, "g", mode=kind)


@pytest.mark.hypothesis
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    records=RECORDS,
    changes=st.lists(CHANGES, max_size=4),
    created=st.booleans(),
    ttl=st.sampled_from([None, "90s", "exact"]),
)
def test_published_values_equal_retrieval_after_each_change(
    tmp_path_factory, records, changes, created, ttl
):
    location = tmp_path_factory.mktemp("store")
    with (
        warnings.catch_warnings(),
        time_machine.travel(NOON, tick=False),
        featurestore.connect(location) as store,
    ):
        warnings.simplefilter("ignore")
        store.create_featuregroup(
            rows_of(records),
            "g",
            primary_key="key",
            event_time="at",
            created_time="known" if created else None,
            ttl=ttl,
            statistics=False,
            validation="off",
        )
        view = store.create_feature_view("v", features=["g.value", "g.number"])
        assert dict(store.publish(view).delta_versions) == {"g@v1": 1}
        assert_published(store, view)
        for step, (kind, argument) in enumerate(changes, 1):
            apply_change(store, kind, argument, 100 * step)
            assert store.publish(view).mode == "incremental"
            assert_published(store, view)


def test_publish_refuses_windows_with_the_job_to_define(tmp_path):
    with featurestore.connect(tmp_path) as store:
        store.create_featuregroup(
            rows_of([("a", 0, 0, 1)]), "g", primary_key="key", event_time="at"
        )
        view = store.create_feature_view("v", features=["g.value|sum|1h as total"])
        with pytest.raises(InvalidArgument, match=r"(?s)sum\|1h.*window_job\("):
            store.publish(view)


def test_publish_refuses_groups_without_primary_key(tmp_path):
    with featurestore.connect(tmp_path) as store:
        store.create_featuregroup(rows_of([("a", 0, 0, 1)]), "g", event_time="at")
        view = store.create_feature_view("v", features=["g.value"])
        with pytest.raises(InvalidArgument, match="'g@v1' has no primary key"):
            store.publish(view)
