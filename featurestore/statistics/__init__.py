"""Table statistics: mergeable counts and samples, results, drift and plots.

``statistics_accumulator`` is run over a table by any engine, and ``finish`` computes the statistics
from the resulting state. This package imports no engine.
"""

from featurestore.model.drift import DriftReport, DriftThresholds, FeatureDrift
from featurestore.model.statistics import ColumnStatistics, Correlations, Statistics
from featurestore.statistics.accumulator import (
    StatisticsAccumulator,
    StatisticsState,
    count_statistics,
    is_sample_short,
    merge,
    state_from_bytes,
    state_to_bytes,
    statistics_accumulator,
)
from featurestore.statistics.drift import compare_statistics
from featurestore.statistics.storage import StatisticsFiles
from featurestore.statistics.summary import finish

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
