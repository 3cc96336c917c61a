"""Variants in Parquet files: nanoseconds are kept, or the column is refused by its name."""

from __future__ import annotations

import struct
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pytest

from featurestore.errors import FeatureStoreError, InvalidSourceFile, UnsupportedType
from featurestore.plugins.source import SourceQuery
from tests.sources.source_writers import open_source

NANOSECONDS = 1_704_067_200_123_456_789
TIME = f"make_timestamp_ns({NANOSECONDS})"
# Types of primitive values: https://github.com/apache/parquet-format, VariantEncoding.
WITH_ZONE, WITHOUT_ZONE = 18, 19
# The thrift encoding of isAdjustedToUTC=false or true, and of the unit NANOS.
UNIT = b"\x1c\x3c\x00\x00\x00"
VALUES = {
    "time": TIME,
    "object": f"{{'a': {TIME}, 'b': 5}}",
    "list": f"[{TIME}]",
}
SHREDDED = {
    "time": "TIMESTAMP_NS",
    "object": "STRUCT(a TIMESTAMP_NS, b INTEGER)",
    "list": "TIMESTAMP_NS[]",
}
# The time is in the column of other values.
OTHER = {"time": "INTEGER", "object": "STRUCT(a INTEGER, b INTEGER)", "list": "INTEGER[]"}


def encoded(type_number: int) -> bytes:
    return bytes([type_number << 2]) + struct.pack("<q", NANOSECONDS)


def write(path: Path, value: str, shredding: str, *, has_zone: bool) -> None:
    with duckdb.connect() as database:
        database.execute(
            f"copy (select 1 as id, ({value})::VARIANT as v) to '{path}' (format parquet, compression "
            f"uncompressed, shredding {{v: '{shredding}'}})"
        )
    if has_zone:
        # DuckDB does not write nanoseconds with a zone.
        content = path.read_bytes().replace(b"\x12" + UNIT, b"\x11" + UNIT)
        path.write_bytes(content.replace(encoded(WITHOUT_ZONE), encoded(WITH_ZONE)))


def outcome(path: Path, **options: str) -> list[dict[str, Any]] | FeatureStoreError:
    snapshot = open_source("file", str(path), **options).snapshot()
    try:
        return snapshot.read(SourceQuery()).read_all().to_pylist()
    except FeatureStoreError as error:
        return error
    finally:
        snapshot.close()


def test_variants_keep_nanoseconds_or_are_refused_by_name(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    shreddings = {
        "shredded": SHREDDED,
        "unshredded": dict.fromkeys(VALUES, "VARIANT"),
        "other": OTHER,
    }
    for shape, (form, types), has_zone in product(VALUES, shreddings.items(), [False, True]):
        path = tmp_path / f"{shape} {form} {has_zone}.parquet"
        write(path, VALUES[shape], types[shape], has_zone=has_zone)
        with subtests.test(path.name):
            rows = outcome(path)
            assert repr(outcome(path, timestamp_precision="us")) == repr(rows)
            if has_zone and form == "shredded":
                # DuckDB would lose three digits, or fail.
                assert isinstance(rows, UnsupportedType)
                assert "'v' (shredded variant with timestamp[ns, tz=UTC])" in rows.message
            elif has_zone and form == "other":
                assert isinstance(rows, InvalidSourceFile)
            else:
                assert isinstance(rows, list)
                assert encoded(WITH_ZONE if has_zone else WITHOUT_ZONE) in rows[0]["v"]["value"]
            if isinstance(rows, FeatureStoreError):
                assert "columns=['id']" in str(rows.hint)
                ids = open_source("file", str(path)).snapshot().read(SourceQuery(columns=("id",)))
                assert ids.read_all().to_pylist() == [{"id": 1}]
