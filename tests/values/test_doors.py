"""Values that enter at any door come out equal, or are refused: the verdict of columns everywhere.

The test prints the number of doors, column types and values, and of the values that were changed.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from tests.values.cases import REFUSED, TYPES, VALUES
from tests.values.door_rules import DOORS
from tests.values.doors import ALL, FEW, PASSAGES, SOME, TELLING, Codes, Prepared, Trial

# Slow doors get fewer values.
CODES: dict[str, Codes] = {
    **dict.fromkeys(DOORS, ALL),
    **dict.fromkeys([name for name in DOORS if name.endswith("s of a write")], SOME),
    **dict.fromkeys(["rows of a write", "`explain(key=)`", "`explain_window(key=)`"], TELLING),
    **dict.fromkeys(["labels of a join", "REST bodies", "`filter` and `where`"], SOME),
    **dict.fromkeys(["columns of sources", "`fill_value=` of views"], FEW),
    "`fill_value=` of windows": TELLING,
    "`--key`": {name: [*few[:2], few[-1]] for name, few in FEW.items()},
}
SPARK_DOORS = (
    *("rows of a write", "labels of a join", "`fill_value=` of windows"),
    *("`explain(key=)`", "`filter` and `where`"),
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("doors")
    with featurestore.connect(folder / "store") as store:
        yield Prepared(store, folder)


def trials_of(prepared: Prepared, door_name: str, codes: Codes) -> list[Trial]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(PASSAGES[door_name](prepared, codes))


def test_values_come_out_equal_or_are_refused(
    prepared: Prepared, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(PASSAGES) == set(DOORS)
    trials: dict[str, list[Trial]] = {}
    for door_name in DOORS:
        with subtests.test(door=door_name):
            trials[door_name] = trials_of(prepared, door_name, CODES[door_name])
            assert [trial for trial in trials[door_name] if not trial.is_correct] == []
            columns = {trial.column for trial in trials[door_name]}
            assert columns == set(DOORS[door_name].types)
            outcomes = Counter(trial.outcome is REFUSED for trial in trials[door_name])
            assert min(outcomes[True], outcomes[False]) > 5
    all_trials = [trial for door_trials in trials.values() for trial in door_trials]
    changed = sum(trial.is_changed for trial in all_trials)
    with capsys.disabled():
        print(
            f"\n{len(trials)} doors x {len(TYPES)} types x {len(VALUES)} values: "
            f"{len(all_trials):,} tried, silently changed: {changed}"
        )
    assert changed == 0


TIMES = st.datetimes().map(
    lambda t: f"dt.datetime({t.year}, {t.month}, {t.day}, {t.hour}, 0, 0, {t.microsecond})"
)
FLOATS = st.floats() | st.integers(-600, 600).map(lambda number: number / 2)
# The code of random values.
RANDOM = st.one_of(
    st.integers(-(2**66), 2**66).map(repr),
    st.integers(-2, 300).map(repr),
    FLOATS.map(lambda number: f"float('{number}')"),
    st.floats(width=32).map(lambda number: f"np.float32('{number}')"),
    st.integers(0, 2**64 - 1).map(lambda number: f"np.uint64({number})"),
    st.decimals(-(10**4), 10**4, places=3).map(lambda number: f"Decimal('{number}')"),
    st.booleans().map(repr),
    st.text("0123456789.-aé", max_size=4).map(repr),
    st.binary(max_size=3).map(repr),
    st.dates().map(lambda day: f"dt.date({day.year}, {day.month}, {day.day})"),
    TIMES,
    TIMES.map(lambda code: code.replace(")", ", tzinfo=BERLIN)")),
    st.lists(st.integers(-5, 5) | FLOATS.filter(math.isfinite), max_size=3).map(repr),
)
CHEAP_DOORS = (
    *("entities", "request values", "`nulls=` of readers", "`class_weights=`"),
    *("inputs of models", "`explain(key=)`"),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RANDOM, min_size=1, max_size=8), st.sampled_from(list(TYPES)))
def test_random_values_come_out_equal_or_are_refused(
    prepared: Prepared, codes: list[str], name: str
) -> None:
    for door_name in CHEAP_DOORS:
        trials = trials_of(prepared, door_name, {name: list(dict.fromkeys(codes))})
        assert [trial for trial in trials if not trial.is_correct] == []


def test_values_come_out_equal_or_are_refused_on_spark(
    prepared: Prepared, spark: Any, subtests: pytest.Subtests
) -> None:
    codes = {name: [*FEW[name][:2], FEW[name][-1]] for name in TYPES}
    with featurestore.connect(prepared.store.location, engine="spark") as store:
        on_spark = copy.copy(prepared)
        on_spark.store = store
        for door_name in SPARK_DOORS:
            with subtests.test(door=door_name):
                trials = trials_of(on_spark, door_name, codes)
                assert [trial for trial in trials if not trial.is_correct] == []
