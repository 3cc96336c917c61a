"""Table statistics: mergeable counts and samples, results, drift and plots.

``statistics_accumulator`` is run over a table by any engine, and ``finish`` computes the statistics
from the resulting state. This package imports no engine. Comparisons are imported when they are
used, since writes do not compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore._imports import lazy_names
from featurestore.model.statistics import ColumnStatistics, Correlations, Statistics
from featurestore.statistics.accumulator import (
    StatisticsAccumulator,
    count_statistics,
    is_sample_short,
    statistics_accumulator,
)
from featurestore.statistics.state import (
    StatisticsState,
    merge,
    state_from_bytes,
    state_to_bytes,
)
from featurestore.statistics.storage import StatisticsFiles
from featurestore.statistics.summary import finish

if TYPE_CHECKING:
    from featurestore.model.drift import DriftReport, DriftThresholds, FeatureDrift
    from featurestore.statistics.drift import compare_statistics

__all__ = [
    "ColumnStatistics",
    "Correlations",
    "DriftReport",
    "DriftThresholds",
    "FeatureDrift",
    "Statistics",
    "StatisticsFiles",
    "StatisticsAccumulator",
    "StatisticsState",
    "compare_statistics",
    "count_statistics",
    "finish",
    "is_sample_short",
    "merge",
    "state_from_bytes",
    "state_to_bytes",
    "statistics_accumulator",
]

_MODULES = {
    "compare_statistics": "featurestore.statistics.drift",
    **dict.fromkeys(("DriftReport", "DriftThresholds", "FeatureDrift"), "featurestore.model.drift"),
}
__getattr__ = lazy_names(__name__, _MODULES)
