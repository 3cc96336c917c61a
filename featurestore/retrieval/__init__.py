"""Point-in-time retrieval of features: planning, execution, explanations and feature frames.

Names are imported lazily: engines, and Spark's executors, import only ``point_in_time``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore._imports import lazy_names

if TYPE_CHECKING:
    from featurestore.retrieval.checks import CoverageWarning
    from featurestore.retrieval.conversions import check_dataframe_type
    from featurestore.retrieval.coverage import CoverageReport, GroupCoverage
    from featurestore.retrieval.execution import run
    from featurestore.retrieval.explain import ExplainedRow, Explanation, explain_value
    from featurestore.retrieval.features import (
        explain_features,
        get_features,
        query_frame,
    )
    from featurestore.retrieval.frame import FeatureFrame, convert
    from featurestore.retrieval.leakage import Leak, LeakReport, check_leakage
    from featurestore.retrieval.window_rows import WindowExplanation, explain_window

__all__ = [
    "FeatureFrame", "get_features", "explain_features", "run", "convert",
    "check_dataframe_type", "explain_value", "explain_window", "Explanation", "ExplainedRow",
    "WindowExplanation", "check_leakage",
    "LeakReport", "Leak", "query_frame", "CoverageReport", "CoverageWarning", "GroupCoverage",
]  # fmt: skip

_MODULES = {
    **dict.fromkeys(("FeatureFrame", "convert"), "frame"),
    "CoverageWarning": "checks",
    "run": "execution",
    **dict.fromkeys(("CoverageReport", "GroupCoverage"), "coverage"),
    "check_dataframe_type": "conversions",
    **dict.fromkeys(("explain_features", "get_features", "query_frame"), "features"),
    **dict.fromkeys(("ExplainedRow", "Explanation", "explain_value"), "explain"),
    **dict.fromkeys(("WindowExplanation", "explain_window"), "window_rows"),
    **dict.fromkeys(("Leak", "LeakReport", "check_leakage"), "leakage"),
}
__getattr__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
)
