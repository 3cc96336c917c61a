"""The shipped formats pass the format conformance suite."""

from __future__ import annotations

import pyarrow as pa
import pytest

from featurestore.errors import UnsupportedType
from featurestore.plugins.format import DatasetFormat, find_format
from featurestore.testing.format_cases import example_table, supported
from featurestore.testing.format_conformance import FormatConformance, build_layout
from featurestore_connectors.tfrecord import TFRecordFormat


@pytest.fixture
def dataset_format(request: pytest.FixtureRequest) -> DatasetFormat:
    return find_format(request.cls.name)


class TestTFRecord(FormatConformance):
    name = "tfrecord"


class OneWidth(TFRecordFormat):
    """TFRecord without variable-length columns, so that the suite uses the fixed layout."""

    def check(self, schema: pa.Schema, *, compression: str | None) -> None:
        varying = [field.name for field in schema if _varies(field.type)]
        try:
            super().check(schema, compression=compression)
        except UnsupportedType as error:
            raise UnsupportedType(f"{error.message} And {varying}.", hint=error.hint) from error
        if varying:
            raise UnsupportedType(f"left out of this run: {varying}", hint="none")


def _varies(dtype: pa.DataType) -> bool:
    if not pa.types.is_fixed_size_list(dtype):
        return bool(pa.types.is_list(dtype))
    numeric = pa.types.is_primitive(dtype.value_type) or pa.types.is_fixed_size_list(
        dtype.value_type
    )
    return not numeric


class TestTFRecordOfOneWidth(FormatConformance):
    @pytest.fixture
    def dataset_format(self) -> DatasetFormat:
        return OneWidth()

    def test_layout_is_fixed_width(self, dataset_format: DatasetFormat) -> None:
        table = example_table(supported(dataset_format))
        layout = build_layout(dataset_format, table)
        assert layout["kind"] == "fixed"
        assert dataset_format.record_access(layout) is not None


class TestParquet(FormatConformance):
    name = "parquet"


class TestCsv(FormatConformance):
    name = "csv"


@pytest.mark.petastorm
class TestPetastorm(FormatConformance):
    name = "petastorm"


class TestHuggingFace(FormatConformance):
    name = "huggingface"


class TestWebDataset(FormatConformance):
    name = "webdataset"
