"""Out-of-range versions, limits, offsets, times and durations are refused by one rule each."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore import experiments
from featurestore.errors import FeatureStoreError, InvalidArgument, OutOfRange
from featurestore.model.arguments import MAX_INT64, check_count, parse_version
from featurestore.model.times import (
    FIRST,
    LAST,
    MAX_DURATION,
    from_micros,
    parse_duration,
    parse_moment,
    shift_time,
    to_micros,
)
from featurestore.store import FeatureStore

CLOCK = datetime(2024, 1, 1, tzinfo=UTC)


@given(st.integers() | st.floats() | st.text() | st.booleans() | st.none() | st.binary())
def test_check_count_accepts_only_integers_in_range(value: object) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and 0 <= value <= MAX_INT64:  # type: ignore[operator]
        assert check_count(value, argument="limit") == value
    else:
        with pytest.raises(InvalidArgument) as refused:
            check_count(value, argument="limit")
        assert isinstance(refused.value, OutOfRange) == is_whole
        hint = re.fullmatch(r"limit=(\d+)", str(refused.value.hint))
        assert hint is not None
        check_count(int(hint[1]), argument="limit")


def test_check_count_accepts_numpy_integers(subtests: pytest.Subtests) -> None:
    for value in (np.int64(3), np.uint8(3), np.array(3)):
        with subtests.test(value=value):
            assert check_count(value, argument="limit") == 3
    with pytest.raises(InvalidArgument):
        check_count(np.bool_(True), argument="limit")


@given(st.text(alphabet="0123456789", min_size=1, max_size=30) | st.just("9" * 5_000))
def test_parse_version_out_of_registry_range_raises(text: str) -> None:
    number = int(text[-4_000:])
    if 1 <= number < 10**9:
        assert parse_version(text) == number
    else:
        with pytest.raises(OutOfRange):
            parse_version(text)


# Python's datetime.fromisoformat reads an offset of less than a second as zero.
OFFSETS = st.timedeltas(-timedelta(hours=23), timedelta(hours=23)).filter(
    lambda offset: not offset or abs(offset) >= timedelta(seconds=1)
)


@given(
    st.datetimes(timezones=OFFSETS.map(timezone))
    | st.sampled_from(
        [
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        ]
    )
)
def test_parse_moment_returns_instant_or_raises_out_of_range(value: datetime) -> None:
    offset = value.utcoffset() or timedelta(0)
    micros = to_micros(value.replace(tzinfo=UTC)) - offset // timedelta(microseconds=1)
    if to_micros(FIRST) <= micros <= to_micros(LAST):
        assert from_micros(micros) == parse_moment(value) == parse_moment(value.isoformat())
    else:
        for spelled in (value, value.isoformat()):
            with pytest.raises(OutOfRange, match="years 1 to 9999"):
                parse_moment(spelled)
        with pytest.raises(OutOfRange):
            from_micros(micros)


def test_parse_moment_far_year_raises_out_of_range(subtests: pytest.Subtests) -> None:
    for text in ("10000-01-01", "+10000-01-01T00:00:00Z", "-0001-01-01", "0000-12-31T00:00:00Z"):
        with subtests.test(text), pytest.raises(OutOfRange, match="years 1 to 9999"):
            parse_moment(text)


@given(st.integers(0, 10**30), st.sampled_from(["us", "ms", "s", "min", "h", "d", "w"]))
def test_parse_duration_above_max_duration_raises(number: int, unit: str) -> None:
    text = f"{number}{unit}"
    units = {"us": 1, "ms": 10**3, "s": 10**6, "min": 6 * 10**7, "h": 36 * 10**8}
    micros = number * {**units, "d": 864 * 10**8, "w": 6048 * 10**8}[unit]
    if micros > MAX_DURATION // timedelta(microseconds=1):
        with pytest.raises(OutOfRange, match=f"at most duration='{MAX_DURATION.days}d'"):
            parse_duration(text)
    else:
        length = parse_duration(text)
        assert length <= MAX_DURATION
        assert FIRST <= shift_time(CLOCK, -length) <= CLOCK <= shift_time(CLOCK, length) <= LAST


def test_parse_duration_very_many_digits_raises_out_of_range() -> None:
    for text in ("9" * 400 + "d", "9" * 5_000 + "us"):
        with pytest.raises(OutOfRange):
            parse_duration(text)
    with pytest.raises(OutOfRange):
        parse_duration(timedelta.max)


HUGE = [2**31, 2**63, 10**30, 10**5_000, -1]


def _calls(store: FeatureStore) -> dict[str, Callable[[Any], object]]:
    """Return a call for each argument that is a version, limit, offset or Delta version."""
    row = [{"k": 1, "t": CLOCK, "x": 1.0}]
    labels = [{"k": 1, "lt": CLOCK}]
    return {
        "group version": lambda n: store.get_featuregroup("g", version=n),
        "group handle": lambda n: store.featuregroup("g", version=n),
        "create version": lambda n: store.create_featuregroup(row, "h", version=n),
        "insert version": lambda n: store.insert_into_featuregroup(row, "g", version=n),
        "delete version": lambda n: store.delete_featuregroup("g", version=n),
        "dataset version": lambda n: store.get_training_dataset("d", version=n),
        "new dataset": lambda n: store.create_training_dataset(row, "d", version=n),
        "view version": lambda n: store.get_feature_view("v", version=n),
        "model version": lambda n: experiments.get_model("m", version=n, store=store),
        "group as_of": lambda n: store.get_featuregroup("g", as_of=n),
        "as_of": lambda n: store.get_features("g.x", labels=labels, as_of={"g": n}),
        "versions": lambda n: store.get_features("g.x", labels=labels, versions={"g": n}),
        "groups limit": lambda n: store.get_featuregroups(limit=n),
        "groups offset": lambda n: store.get_featuregroups(offset=n),
        "datasets limit": lambda n: store.get_training_datasets(limit=n),
        "jobs limit": lambda n: store.get_jobs(limit=n),
        "search limit": lambda n: store.search("x", limit=n),
        "history limit": lambda n: store.get_featuregroup_history("g", limit=n),
        "history before": lambda n: store.get_featuregroup_history("g", before=n),
        "validation limit": lambda n: store.get_validation_history("g", limit=n),
        "runs limit": lambda n: experiments.get_runs(limit=n, store=store),
        "transaction": lambda n: store.insert_into_featuregroup(row, "g", transaction=("a", n)),
        "head": lambda n: store.get_featuregroup("g").head(n),
        "show": lambda n: store.get_featuregroup("g").show(n),
        "seed": lambda n: store.get_featuregroup("g").sample(fraction=0.5, seed=n).count(),
    }


def test_store_calls_with_huge_counts_raise(empty_store: FeatureStore) -> None:
    store = empty_store
    rows = [{"k": 1, "t": CLOCK, "x": 1.0}]
    store.create_featuregroup(rows, "g", primary_key="k", event_time="t")
    wrong = []
    for name, call in _calls(store).items():
        for number in HUGE:
            try:
                call(number)
            except FeatureStoreError as error:
                is_count = number > MAX_INT64 and name != "seed"
                if is_count and not isinstance(error, OutOfRange):
                    wrong.append((name, number.bit_length(), repr(error)[:200]))
            except Exception as error:
                wrong.append((name, number.bit_length(), repr(error)[:200]))
            else:
                if number > MAX_INT64 and name != "seed":
                    wrong.append((name, number.bit_length(), "taken"))
    assert wrong == []


def test_references_with_huge_versions_raise(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    empty_store.create_featuregroup([{"k": 1, "x": 1.0}], "g", primary_key="k")
    for digits in (10, 30, 5_000):
        with subtests.test(digits=digits):
            group = f"g@v{'9' * digits}"
            with pytest.raises(OutOfRange):
                empty_store.get_features(f"{group}.x", labels=[{"k": 1}])
            with pytest.raises(OutOfRange):
                empty_store.get_features("g.x", labels=group)
            with pytest.raises(OutOfRange):
                empty_store.get_featuregroup(group)


def test_search_text_above_limit_raises(empty_store: FeatureStore) -> None:
    with pytest.raises(OutOfRange, match="50,000 characters; the maximum is 1,000"):
        empty_store.search("x" * 50_000)
    assert empty_store.search("x" * 1_000) == []


def test_ttl_and_tolerance_above_max_duration_raise(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    rows = [{"k": 1, "t": CLOCK, "x": 1.0}]
    store = empty_store
    for longest in (MAX_DURATION, f"{MAX_DURATION.days}d"):
        name = f"g{type(longest).__name__}"
        store.create_featuregroup(
            rows, name, primary_key="k", event_time="t", ttl=longest, event_time_tolerance=longest
        )
        frame = store.get_features(f"{name}.x", labels=[{"k": 1, "lt": CLOCK}], label_time="lt")
        assert frame.to_arrow().column("x").to_pylist() == [1.0]
        assert list(store.vacuum_featuregroup(name, retain=longest)) == []
    for length in ("99999999w", "9" * 400 + "d", timedelta.max):
        with subtests.test(length=length):
            for argument in ("ttl", "event_time_tolerance"):
                options: dict[str, Any] = {argument: length}
                with pytest.raises(OutOfRange):
                    store.create_featuregroup(rows, "g", primary_key="k", event_time="t", **options)
            with pytest.raises(OutOfRange):
                store.vacuum_featuregroup(name, retain=length)
