"""The engine conformance suite on Spark, and on both engines over the same tables."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from featurestore.plugins.engine import Engine, Relation
from featurestore.testing.engine_conformance import CrossEngineConformance, EngineConformance
from featurestore.testing.relation_conformance import RelationConformance
from featurestore_connectors.duckdb_delta import DuckDBEngine

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark_engine: Engine) -> Engine:
    return spark_engine


@pytest.fixture(scope="module")
def other() -> Iterator[Engine]:
    engine = DuckDBEngine()
    yield engine
    engine.close()


class TestSpark(EngineConformance):
    upsert_seeds = range(1)
    # These use the same Delta code as other tests: partitions are in the suite of both engines,
    # range ends are in the relation suite, and vacuum selects files without Spark.
    in_soak = frozenset(
        {
            "test_upsert_replaces_rows_of_equal_keys[partition_by1]",
            "test_delete_removes_rows_with_true_predicate[partition_by1]",
            "test_replace_deletes_exactly_its_range[right-left1]",
            "test_replace_without_rows_empties_range",
            "test_composite_keys_never_meet_by_their_text",
            "test_vacuum_keeps_files_of_recent_versions",
            "test_concurrent_create_table_has_one_winner",
            "test_upsert_deletes_keys_and_stores_offsets[partition_by1]",
            "test_widened_decimals_keep_rows[partition_by0]",
            "test_append_casts_decimals_to_wider_columns[append]",
            "test_append_casts_decimals_to_wider_columns[overwrite]",
            "test_append_casts_decimals_to_wider_columns[replace]",
            "test_upsert_replaces_rows_of_equal_keys[partition_by0]",
        }
    )

    def staged_relation(self, engine: Engine, table: pa.Table) -> Relation:
        folder = next(self._stages)
        engine.stage(engine.from_arrow(table.to_reader()), folder)
        return engine.read_files([folder], schema=table.schema)


@pytest.mark.soak
class TestManySparkUpserts(TestSpark):
    upsert_seeds = range(1, 8)


class TestSparkWithHeldRows(RelationConformance):
    """Relations of small streams, which the driver evaluates itself if it can."""


class TestSparkBesideDuckDB(CrossEngineConformance):
    pass
