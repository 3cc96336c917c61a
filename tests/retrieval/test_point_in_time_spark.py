"""The point-in-time rules on Spark, and random cases compared with the oracle."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from featurestore.testing.oracle import SHAPES, JoinShape, any_shape
from featurestore.testing.retrieval_conformance import (
    ResultConformance,
    RetrievalCheck,
    RuleConformance,
    check_cases,
)
from tests.on_spark import OnSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


@pytest.mark.soak
class TestSparkByRule(OnSpark, RuleConformance):
    """Each rule alone; the random cases of the other suite combine them."""


# One shape per Spark plan; on the embedded engine each run draws from all shapes,
# on Spark `make soak` does.
PLANS = {
    "plain",
    "created=True",
    "created=True-waits=False-unique=True",
    "key=decimal-ttl=1-how=inner",
    "key=text-time=date-created=True",
    "key=pair-time=none-unique=True-how=inner",
    "created=True-ttl=3-fixed=True",
}


def shapes_on_spark() -> list[Any]:
    """Return all shapes; those with the same plan as another are soak tests."""
    result = []
    for shape in SHAPES:
        marks = [] if str(shape) in PLANS else [pytest.mark.soak]
        result.append(pytest.param(shape, marks=marks, id=str(shape)))
    assert len(PLANS.intersection(map(str, SHAPES))) == len(PLANS)
    return result


class TestSpark(OnSpark, ResultConformance):
    # Names and the order of features are resolved before Spark compiles; the
    # random cases have composite string keys.
    in_soak = frozenset(
        {
            "test_composite_keys_never_meet_by_their_text",
            "test_text_keys_with_separators_stay_distinct",
            "test_feature_order_does_not_change_values",
            "test_aliases_distinguish_equal_names",
            "test_two_versions_of_a_group_are_joined",
            "test_join_key_maps_label_columns",
            "test_decimal_and_integer_keys_match_by_value[plain]",
            "test_decimal_and_integer_keys_match_by_value[timed]",
        }
    )

    # Compiled and interpreted queries follow the same rules; the random cases are compiled.
    @pytest.mark.usefixtures("compiled_queries")
    @pytest.mark.parametrize("shape", shapes_on_spark())
    def test_random_cases_equal_the_oracle(
        self, retrieval: RetrievalCheck, shape: JoinShape
    ) -> None:
        check_cases(retrieval, shape, count=self.cases_at_once, seed=0)


@pytest.mark.usefixtures("compiled_queries")
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=any_shape(), count=st.integers(100, 200), seed=st.integers(0, 2**32 - 1))
def test_rule_combinations_agree_on_all_engines(
    spark: SparkSession, shape: JoinShape, count: int, seed: int
) -> None:
    from featurestore_connectors.duckdb_delta import DuckDBEngine
    from featurestore_connectors.spark_delta import SparkEngine

    with closing(DuckDBEngine()) as writer:
        for engine in (writer, SparkEngine(spark)):
            with tempfile.TemporaryDirectory() as directory:
                check_cases(
                    RetrievalCheck(engine, Path(directory), writer), shape, count=count, seed=seed
                )
