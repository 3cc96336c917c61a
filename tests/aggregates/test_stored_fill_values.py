"""Fill values of windows in stored views, jobs and manifests have the values of the request."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import featurestore
from featurestore.aggregates.kernel import result_type
from featurestore.errors import InvalidArgument
from featurestore.model.window_features import WindowFeature, value_to_json
from featurestore.store import FeatureStore
from featurestore.training.recompute import replay_plan
from tests.values.cases import REFUSED, TYPES, VALUES, are_equal, fitted, value_of

START = datetime(2024, 1, 1, tzinfo=UTC)
LABELS = pa.table({"k": pa.array([1], pa.int64()), "t": [START]})
# Before these rows there are no values, so a window over one day has its fill value.
EVENTS = {"k": pa.array([1], pa.int64()), "at": [START + timedelta(days=9)]}


def fill(store: FeatureStore) -> None:
    columns = {
        f"c{number}": pa.array([None], column_type)
        for number, column_type in enumerate(TYPES.values())
    }
    store.create_featuregroup(LABELS, "questions", primary_key="k", event_time="t")
    store.create_featuregroup(
        pa.table({**EVENTS, **columns}), "events", primary_key="k", event_time="at"
    )


def fill_windows() -> dict[str, tuple[list[WindowFeature], list[Any]]]:
    """Return windows of each type with each value that fits, and the values without rows."""
    windows = {}
    for number, (name, column_type) in enumerate(TYPES.items()):
        requests: list[WindowFeature] = []
        expected: list[Any] = []
        functions = {"last": 0, "last_n": 2}
        if result_type("last_n", column_type, n=2) is None:
            functions.pop("last_n")
        for code in VALUES:
            value = fitted(value_of(code), column_type)
            if value is REFUSED:
                continue
            for function, n in functions.items():
                requests.append(
                    featurestore.window(
                        f"events.c{number}", function, over="1d",  # type: ignore[arg-type]
                        name=f"w{len(requests)}", fill_value=value_of(code), n=n or None,
                    )
                )  # fmt: skip
                expected.append([value] * n if n else value)
        windows[name] = (requests, expected)
    return windows


def test_fill_values_of_every_type_are_equal_in_stored_views(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    fill(empty_store)
    for number, (title, (windows, expected)) in enumerate(fill_windows().items()):
        with subtests.test(title):
            assert len(windows) > 1
            empty_store.create_feature_view(f"v{number}", features=windows)
            with featurestore.connect(empty_store.location) as reopened:
                frame = reopened.get_feature_view(f"v{number}").get_features(labels="questions")
                (row,) = frame.select(*[window.name for window in windows]).to_arrow().to_pylist()
                for value, expected_value in zip(row.values(), expected, strict=True):
                    assert are_equal(value, expected_value)
                # The plan of a manifest is this JSON.
                plan = json.loads(json.dumps(frame.plan.to_json()))
                replayed = replay_plan(reopened._session, plan)
                for output, planned in zip(
                    replayed.windows[0].outputs, frame.plan.windows[0].outputs, strict=True
                ):
                    assert are_equal(output.fill_value, planned.fill_value)


@pytest.mark.parametrize(
    "value",
    [pd.Timestamp("2024-01-31T12:00:00.000000001"), np.datetime64(1, "ns"), 1j, object()],
)
def test_fill_value_without_json_form_raises(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"fill_value=.*\nHint: "):
        value_to_json({"a": [value]})
