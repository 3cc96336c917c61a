"""Custom metrics of merged windows equal the metrics of all rows."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc
import pytest

from featurestore.monitoring.profile import Profile, merge_estimates
from featurestore.store import FeatureStore
from tests.monitoring.conftest import A_DAY, DAY, DAYS, NOW, profiles, sales

Define = Callable[..., str]


def test_custom_metric_parts_combine_to_whole_metric(shop: FeatureStore, define: Define) -> None:
    folder = profiles(shop.location)
    shutil.rmtree(folder)  # all is counted here
    define(
        "volume=None, drift=None, baseline=featurestore.baseline(last='7d'), metrics={"
        "'late_share': 'avg(late)', 'mean': 'avg(amount)', 'rows': 'count(*)', "
        "'turnover': 'sum(amount)', 'dearest': 'max(amount)', 'cheapest': 'min(amount)', "
        "'middle': 'median(amount)', 'few': 'avg(distinct late)'}"
    )
    shop.backfill_job("watch", NOW - 3 * DAY, NOW)
    windows = {}
    for file in folder.iterdir():
        profile = Profile.from_json(json.loads(zlib.decompress(file.read_bytes())))
        assert profile.window is not None
        windows[profile.window.start] = profile
    last = [windows[NOW - number * DAY] for number in (1, 2, 3)]
    rows = sales(DAYS - 3, 3)
    expected = {
        "late_share": np.mean(rows["late"].to_numpy()),
        "mean": pc.mean(rows["amount"]).as_py(),
        "rows": 3 * A_DAY,
        "turnover": pc.sum(rows["amount"]).as_py(),
        "dearest": pc.max(rows["amount"]).as_py(),
        "cheapest": pc.min(rows["amount"]).as_py(),
    }
    for name, value in expected.items():
        actual = merge_estimates([profile.estimates[name] for profile in last])
        assert actual is not None
        assert actual.value == pytest.approx(value), name
    assert last[0].estimates.keys() == expected.keys()
    assert last[0].metrics.keys() == {*expected, "middle", "few"}
    mean = merge_estimates([profile.estimates["mean"] for profile in last])
    assert mean is not None
    assert mean.variance == pytest.approx(pc.variance(rows["amount"]).as_py())
    shares = merge_estimates([profile.estimates["late_share"] for profile in last])
    assert shares is not None
    assert (shares.is_share, mean.is_share) == (True, False)
