# ruff: noqa: E501
"""Common user mistakes and their error messages.

A row is a mistake, the exception, and words that its text must have. No text shows a library's
internal line, and nothing is written before the error.
"""

from __future__ import annotations

import decimal
import pathlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featurestore
from featurestore.errors import (
    AmbiguousFeature,
    ConfigurationError,
    DataWarning,
    DuplicateKeys,
    FeatureGroupNotFound,
    FeatureNotFound,
    FeatureStoreError,
    InvalidArgument,
    InvalidExpectation,
    InvalidName,
    InvalidSplit,
    InvalidSql,
    LabelTimeRequired,
    LocationNotWritable,
    NotIterable,
    ReaderConfigError,
    RegistryError,
    SchemaMismatch,
    TrainingDatasetNotFound,
    UnsupportedDataframe,
    UnsupportedType,
    VersionNotFound,
)
from featurestore.model.times import NaiveTimeWarning
from featurestore.readers import Reader
from featurestore.store import FeatureStore

pd = pytest.importorskip("pandas")

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
# Strings that error messages must not contain.
INTERNAL = ("Traceback", "ArrowInvalid", "pyarrow.lib", "Conversion failed", "did not recognize",
            "psycopg", "sqlite3.", "sqlalchemy", "pydantic", "validation error", "NoneType has")  # fmt: skip


def table(**columns: Any) -> Any:
    """Return twenty hourly rows of four keys, with additional columns if needed."""
    times = [NOON + timedelta(hours=number) for number in range(20)]
    rows = {"k": list("abcd") * 5, "t": times, "x": np.arange(20.0), "y": [0, 1] * 10}
    return pd.DataFrame({**rows, **columns})


@dataclass(frozen=True)
class World:
    """One store for all mistakes, since none changes it."""

    store: FeatureStore
    reader: Reader
    folder: Path

    def create(self, df: object, **arguments: Any) -> object:
        return self.store.create_featuregroup(df, "made", **arguments)

    def export(self, df: object, **arguments: Any) -> object:
        return self.store.create_training_dataset(df, "made", label="y", **arguments)

    def expect(self, suffix: str, **kwargs: Any) -> object:
        expectation = {"type": f"expect_column_{suffix}", "kwargs": kwargs}
        return self.create(table(), primary_key="k", event_time="t", expectations=[expectation])

    def labels(self, **columns: Any) -> object:
        labels = pd.DataFrame({"k": ["a"], **columns})
        return self.store.get_features(["g.x"], labels=labels, label_time="t").to_pandas()

    @property
    def group(self) -> Any:
        return self.store.featuregroup("g")

    @property
    def composite(self) -> Any:
        return self.store.featuregroup("c")

    def files(self) -> list[str]:
        """Return the files of groups and datasets."""
        result = []
        for folder in ("featuregroups", "trainingdatasets"):
            paths = (self.folder / "store" / folder).rglob("*")
            result += [str(path) for path in paths if path.is_file()]
        return sorted(result)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("mistakes")
    with featurestore.connect(folder / "store") as store:
        keys: dict[str, Any] = {"primary_key": "k", "event_time": "t"}
        store.create_featuregroup(table(), "g", **keys)
        store.create_featuregroup(table().rename(columns={"x": "wind"}), "h", **keys)
        store.create_featuregroup(table(n=1), "c", primary_key=["k", "n"], event_time="t")
        store.create_featuregroup(table()[["x"]], "keyless")
        dataset = store.create_training_dataset(table(), "made_before", label="y")
        yield World(store, dataset.reader("train", global_batch_size=4, columns=["x", "y"]), folder)


Row = tuple[str, Callable[[World], object], type[Exception], tuple[str, ...]]


def frame(**columns: Any) -> Any:
    return pd.DataFrame(columns)


DATA: list[Row] = [
    ("mixed column", lambda w: w.create(frame(a=[1, "b", None])), UnsupportedType,
     ("Column 'a'", "row 0 is int (1)", "row 1 is str ('b')", "df = featurestore.cast(df, {'a': 'string'})")),
    ("mixed rows", lambda w: w.create([{"a": 1}, {"a": "b"}]), UnsupportedType, ("row 0 is int", "row 1 is str")),
    ("mixed category", lambda w: w.create(frame(a=pd.Categorical(["b", 1]))), UnsupportedType,
     ("row 0 is str", "row 1 is int")),
    ("arrays of unequal shapes", lambda w: w.create(frame(a=[np.ones((8, 8)), None, np.ones((7, 8))])), UnsupportedType,
     ("row 0 has (8, 8)", "row 2 has (7, 8)", "pad or resize", "encoded bytes")),
    ("arrays among numbers", lambda w: w.create(frame(a=[np.ones((2, 2)), 3])), UnsupportedType,
     ("row 0 is ndarray", "row 1 is int (3)", "None for missing arrays")),
    ("later arrays of another shape", lambda w: w.create(iter([frame(a=[[1, 2]]), frame(a=[[1, 2, 3]])])), UnsupportedType,
     ("the first dataframe has (2,)", "row 1 has (3,)", "pa.list_(pa.int64())")),
    ("complex images", lambda w: w.create({"a": np.ones((2, 3, 3), complex)}), UnsupportedType,
     ("complex128", "df = featurestore.cast(df, {'a': 'list<list<float64[2]>>'})")),
    ("columns of unequal lengths", lambda w: w.create({"a": np.ones((2, 3, 3)), "b": [1]}), UnsupportedDataframe,
     ("'a' has 2, 'b' has 1",)),
    ("arrays encoded by a codec", lambda w: w.create(frame(a=[b"\x93NUMPY\x01"])), UnsupportedType,
     ("NdarrayCodec", "pa.binary(), and insert them")),
    ("complex numbers", lambda w: w.create(frame(a=[1j])), UnsupportedType, ("complex128", "df = featurestore.cast(df, {'a': 'float64[2]'})")),
    ("large decimals", lambda w: w.create(frame(a=[decimal.Decimal(10) ** 40])), UnsupportedType,
     ("38 digits", "df = featurestore.cast(df, {'a': 'string'})")),
    ("timedelta", lambda w: w.create(frame(a=pd.to_timedelta([1], unit="h"))), UnsupportedType,
     ("timedelta64", "df = featurestore.cast(df, {'a': 'int64'})")),
    ("period", lambda w: w.create(frame(a=pd.period_range("2024-01", periods=1, freq="M"))), UnsupportedType,
     ("period[M]", "df = featurestore.cast(df, {'a': 'timestamp'})")),
    ("all null", lambda w: w.create(frame(k=[1], a=[None])), UnsupportedType,
     ("no row has a value in them: 'a' (null)", "dtypes={'a': 'string'}")),
    ("name of a CSV file", lambda w: w.create("trips.csv"), UnsupportedDataframe,
     ("'trips.csv' is a file name", "pd.read_csv('trips.csv')", "duckdb.read_csv('trips.csv')")),
    ("path of a Parquet file", lambda w: w.create(pathlib.Path("a/trips.parquet")), UnsupportedDataframe,
     ("duckdb.read_parquet('a/trips.parquet')",)),
    ("name of a folder", lambda w: w.create("trips"), UnsupportedDataframe, ("read_parquet('trips/*.parquet')",)),
    ("a number that does not fit", lambda w: w.store.insert_into_featuregroup(table(y=[0.5] * 20), "g"), SchemaMismatch,
     ("'y' is double where the group has int64, and 0.5 does not fit", "create the next version of the group")),
    ("texts for numbers", lambda w: w.store.insert_into_featuregroup(table(y=["1"] * 20), "g"), SchemaMismatch,
     ("'y' is string where the group has int64", "df = featurestore.cast(df, {'y': 'int64'})")),
    ("name of a file to insert", lambda w: w.store.insert_into_featuregroup("trips.csv", "g"), UnsupportedDataframe,
     ("pd.read_csv('trips.csv')",)),
    ("name of a file to export", lambda w: w.export("trips.csv"), UnsupportedDataframe, ("read_csv('trips.csv')",)),
    ("dict of scalars", lambda w: w.create({"a": 1, "b": "c"}), UnsupportedDataframe, ("'a', 'b'", "df = [df]")),
    ("iterator of rows", lambda w: w.create(iter([{"a": 1}])), UnsupportedDataframe, ("df = list(df)",)),
    ("None", lambda w: w.create(None), UnsupportedDataframe, ("NoneType", "pass rows, such as")),
    ("number", lambda w: w.create(5), UnsupportedDataframe, ("5 of type int", "pandas or polars DataFrame")),
    ("frame without columns", lambda w: w.create(pd.DataFrame()), UnsupportedDataframe, ("no columns",)),
    ("empty list", lambda w: w.create([]), UnsupportedDataframe, ("no columns", "with types")),
    ("names of two columns", lambda w: w.create(pd.DataFrame([[1, 2]], columns=["a", "a"])), InvalidName,
     ("must be unique", "df = featurestore.rename(df, ['a', 'a_2'])")),
    ("names by case", lambda w: w.create(frame(a=[1], A=[2])), InvalidName, ("featurestore.rename(df, {'A': 'A_2'})",)),
    ("names with spaces", lambda w: w.create(pd.DataFrame([[1] * 5], columns=["a b", "c.d", "é", "", "%"])),
     InvalidName, ("{'a b': 'a_b', 'c.d': 'c_d', 'é': 'e', '': 'feature', '%': 'feature_2'}",)),
    ("name before data to insert", lambda w: w.store.insert_into_featuregroup("made", frame(a=[1])), InvalidName,
     ("is a DataFrame, not a string", "Hint: store.insert_into_featuregroup(data, 'made')")),
    ("name before data", lambda w: w.store.create_featuregroup("Trips", frame(a=[1]), rename="snake_case"), InvalidName,
     ("Hint: store.create_featuregroup(data, 'trips')",)),
    ("name before rows", lambda w: w.store.get_or_create_featuregroup("trips", [{"a": 1}]), InvalidName,
     ("is a list, not a string", "Hint: store.get_or_create_featuregroup(data, 'trips')")),
    ("name before data to export", lambda w: w.store.create_training_dataset("trips", table()), InvalidName,
     ("Hint: store.create_training_dataset(data, 'trips')",)),
    ("data for a name", lambda w: w.store.get_featuregroup(frame(a=[1])), InvalidName,
     ("is a DataFrame, not a string", "pass a string")),
    ("numbers as names", lambda w: w.create(pd.DataFrame([[1, 2]])), InvalidName, ("df = featurestore.rename(df, {0: 'col_0', 1: 'col_1'})",)),
]  # fmt: skip

GROUPS: list[Row] = [
    ("name", lambda w: w.store.create_featuregroup(table(), "My Group"), InvalidName, ("'my_group'",)),
    ("no such key", lambda w: w.create(table(), primary_key="kk"), InvalidArgument,
     ("'kk'", "Available: 'k', 't', 'x', 'y'", "primary_key='k'")),
    ("no such time", lambda w: w.create(table(), primary_key="k", event_time="tt"), InvalidArgument, ("event_time='t'",)),
    ("no such partition", lambda w: w.create(table(), partition_by="yy"), InvalidArgument, ("partition_by='y'",)),
    ("time is text", lambda w: w.create(table(t="2024-01-01"), primary_key="k", event_time="t"), InvalidArgument,
     ("df = featurestore.cast(df, {'t': 'timestamp'})",)),
    ("float key", lambda w: w.create(table(), primary_key="x"), InvalidArgument, ("double", "keys are integers")),
    ("duplicate keys at creation", lambda w: w.create(table(), primary_key="k"), DuplicateKeys,
     ("'a'", "event_time='t' stores every row")),
    ("duplicate keys of an insert", lambda w: w.store.insert_into_featuregroup(
        pd.concat([table()] * 2), "g"), DuplicateKeys, ("on_duplicates='last'",)),
    ("policy", lambda w: w.create(table(), validation="strickt"), InvalidArgument, ("validation='strict'",)),
    ("mode replace", lambda w: w.group.insert(table(), mode="replace"), InvalidArgument,
     ("'append' adds", "'upsert' replaces", "did you mean mode='overwrite'")),
    ("mode w", lambda w: w.group.insert(table(), mode="w"), InvalidArgument, ("mode='overwrite'",)),
    ("mode merge", lambda w: w.group.insert(table(), mode="merge"), InvalidArgument, ("mode='upsert'",)),
    ("mode in capitals", lambda w: w.group.insert(table(), mode="Append"), InvalidArgument, ("mode='append'",)),
    ("upsert without key", lambda w: w.store.insert_into_featuregroup(table()[["x"]], "keyless", mode="upsert"),
     FeatureStoreError, ("no primary key", "mode='append'")),
    ("missing column", lambda w: w.group.insert(table().drop(columns="x")), SchemaMismatch, ("missing: 'x'",)),
    ("no such group", lambda w: w.store.get_featuregroup("gg"), FeatureGroupNotFound,
     ("'c', 'g', 'h', 'keyless'", "did you mean 'g'")),
    ("no such version", lambda w: w.store.get_featuregroup("g", version=3), FeatureGroupNotFound, ("Available: 1", "g@v1")),
    ("kind of dataframe", lambda w: w.store.get_featuregroup("g", dataframe_type="panda"), InvalidArgument,  # type: ignore[arg-type]
     ("dataframe_type='pandas'",)),
    ("condition", lambda w: w.store.delete_from_featuregroup("g", "kk = 'a'"), InvalidSql, ("'kk'", "'k', 't', 'x', 'y'")),
    ("as of long ago", lambda w: w.store.get_featuregroup("g", as_of="2001-01-01T00:00Z"), VersionNotFound,
     ("its commits are from", "as_of='")),
    ("as of no time", lambda w: w.store.get_featuregroup("g", as_of="yesterday"), InvalidArgument, ("ISO 8601",)),
    ("as of no version", lambda w: w.store.get_featuregroup("g", as_of=99), VersionNotFound, ("0 to 1", "as_of=1")),
    ("features as of long ago", lambda w: w.store.get_features(["g.x"], as_of="2001-01-01T00:00Z"), FeatureStoreError,
     ("2001-01-01", "as_of='")),
    ("key of another type", lambda w: w.group.explain(key=5), InvalidArgument, ("k=5 of type int does not fit string", "key={'k': 'a'}")),
    ("part of a key", lambda w: w.composite.explain(key="a"), InvalidArgument, ("key={'k': 'a', 'n': 1}",)),
    ("wrong part of a key", lambda w: w.composite.explain(key={"k": "a", "m": 1}), InvalidArgument,
     ("key={'k': 'a', 'n': 1}",)),
]  # fmt: skip

FEATURES: list[Row] = [
    ("no such feature", lambda w: w.store.get_features(["g.xx"]), FeatureNotFound, ("'g.x'",)),
    ("feature of another group", lambda w: w.store.get_features(["g.wind"]), FeatureNotFound, ("'h.wind'",)),
    ("no such plain feature", lambda w: w.store.get_features(["winds"]), FeatureNotFound, ("'h.wind'",)),
    ("feature of several groups", lambda w: w.store.get_features(["y"]), AmbiguousFeature, ("'g.y'", "'h.y'")),
    ("no such group", lambda w: w.store.get_features(["gg.x"]), FeatureGroupNotFound, ("did you mean 'g.x'",)),
    ("drop", lambda w: w.store.get_featuregroup("g").drop("xx"), FeatureNotFound, ("'k', 't', 'x', 'y'", "'x'")),
    ("select", lambda w: w.store.get_featuregroup("g").select("xx"), FeatureNotFound, ("did you mean 'x'",)),
    ("label time is text", lambda w: w.labels(t=["2024-01-01 10:00"]), LabelTimeRequired,
     ("string", "df = featurestore.cast(df, {'t': 'timestamp'})")),
    ("label time is a number", lambda w: w.labels(t=[5]), LabelTimeRequired, ("int64", "timestamp[s]")),
    ("no such label time", lambda w: w.labels(time=[NOON]), LabelTimeRequired, ("'time'",)),
]  # fmt: skip

EXPECTATIONS: list[Row] = [
    ("type", lambda w: w.expect("value_to_be_between", column="x"), InvalidExpectation,
     ("did you mean 'expect_column_values_to_be_between'",)),
    ("argument", lambda w: w.expect("values_to_be_between", column="x", min=0), InvalidExpectation,
     ("unknown argument 'min'", "'min_value'", "did you mean")),
    ("no column", lambda w: w.expect("values_to_not_be_null"), InvalidExpectation, ("missing arguments 'column'",
     "available: 'column'")),
    ("no such column", lambda w: w.expect("values_to_not_be_null", column="xx"), InvalidExpectation,
     ("'xx'", "'k', 't', 'x', 'y'")),
]  # fmt: skip

HALVES = {"a": 0.5, "b": 0.5}
DATASETS: list[Row] = [
    ("no such label", lambda w: w.store.create_training_dataset(table(), "made", label="z"), InvalidArgument,
     ("label", "'z'", "'k', 't', 'x', 'y'")),
    ("labels null", lambda w: w.export(table(y=np.nan)), InvalidArgument, ("'y' is null in all 20 rows",)),
    ("labels without type", lambda w: w.export(table(y=None)), UnsupportedType, ("'y' (null)", "df = featurestore.cast(df, {'y': 'float64'})")),
    ("format", lambda w: w.export(table(), data_format="tfrecords"), InvalidArgument, ("data_format='tfrecord'",)),
    ("no such format", lambda w: w.export(table(), data_format="json"), InvalidArgument, ("'parquet', 'petastorm', 'tfrecord'",)),
    ("stratify", lambda w: w.export(table(), splits=HALVES, stratify="yy"), InvalidArgument,
     ("Unknown columns in stratify", "'yy'", "stratify='y'")),
    ("split_by", lambda w: w.export(table(), splits=HALVES, split_by="kk"), InvalidArgument, ("split_by='k'",)),
    ("80 to 20", lambda w: w.export(table(), splits={"train": 80, "test": 20}), InvalidSplit,
     ("splits={'train': 0.8, 'test': 0.2}",)),
    ("0.99", lambda w: w.export(table(), splits={"train": 0.79, "test": 0.2}), InvalidSplit,
     ("sum to 0.99", "splits={'train': 0.798, 'test': 0.202}")),
    ("list of fractions", lambda w: w.export(table(), splits=[0.8, 0.2]), InvalidSplit, ("splits={'train': 0.8",)),
    ("no such dataset", lambda w: w.store.get_training_dataset("made_bfore"), TrainingDatasetNotFound,
     ("did you mean 'made_before'",)),
    ("no such split", lambda w: w.store.get_training_dataset("made_before").read("trian"), InvalidSplit,
     ("did you mean 'train'",)),
    ("iterated", lambda w: list(w.reader), NotIterable, ("for batch in reader.batches(epoch)", "reader.tf_dataset(")),
    ("next", lambda w: next(w.reader), NotIterable, ("model.fit(reader.tf_dataset(epochs))",)),
    ("as a list", lambda w: w.reader[0], NotIterable, ("PyTorch", "reader.torch_loader()")),
    ("length, as a DataLoader asks", lambda w: len(w.reader), NotIterable, ("reader.torch_loader()",)),
    ("batch too large", lambda w: w.store.get_training_dataset("made_before").reader(
        "train", global_batch_size=400, columns=["x"]), ReaderConfigError, ("20 rows", "smaller")),
    ("workers", lambda w: w.reader.batches(workers=3), ReaderConfigError, ("1, 2, 4 workers",)),
]  # fmt: skip

STORES: list[Row] = [
    ("engine", lambda w: featurestore.connect(w.folder / "new", engine="dukdb"), InvalidArgument, ("engine='duckdb'",)),
    ("registry is a path", lambda w: featurestore.connect(w.folder / "new", registry="/tmp/registry.db"),
     ConfigurationError, ("registry='sqlite:////tmp/registry.db'",)),
    ("registry of another kind", lambda w: featurestore.connect(w.folder / "new", registry="mysql://host/db"),
     ConfigurationError, ("sqlite and postgresql", "registry='postgresql://")),
    ("no such folder", lambda w: featurestore.connect(w.folder / "new", registry="sqlite:////no/such/r.db"), RegistryError,
     ("'/no/such'", "create the folder")),
    ("location below a file", lambda w: featurestore.connect("/dev/null/store"), LocationNotWritable,
     ("'/dev/null/store'", "$FEATURESTORE_LOCATION")),
]  # fmt: skip

TABLES = {
    "data": DATA,
    "groups": GROUPS,
    "features": FEATURES,
    "expectations": EXPECTATIONS,
    "datasets": DATASETS,
    "stores": STORES,
}


@pytest.mark.filterwarnings("ignore::featurestore.errors.DataWarning")  # printed with the error
@pytest.mark.parametrize("topic", TABLES)
def test_invalid_call_raises_with_hint_and_changes_nothing(
    world: World, topic: str, subtests: pytest.Subtests
) -> None:
    for title, mistake, error_type, words in TABLES[topic]:
        before = world.files()
        with subtests.test(title):
            with pytest.raises(error_type) as error:
                mistake(world)
            assert isinstance(error.value, FeatureStoreError)
            text = str(error.value)
            assert [word for word in words if word not in text] == [], text
            assert [word for word in INTERNAL if word in text] == [], text
            assert "featurestore fg" not in text, text
            assert world.files() == before


def test_refused_registry_connection_names_host_and_user(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(RegistryError) as error:
        featurestore.connect(
            tmp_path / "s", registry="postgresql://me:hunter2@127.0.0.1:1/features"
        )
    text = str(error.value)
    for word in ("refused", "127.0.0.1", "port 1", "user me", "database features"):
        assert word in text
    assert "hunter2" not in text
    assert len(text.splitlines()) == 2


LOSSLESS_INPUTS = {
    "decimals": frame(a=[decimal.Decimal("1.5")]),
    "categories": frame(a=pd.Categorical(["b", "c"])),
    "intervals": frame(a=pd.interval_range(0, 2)),
    "dict of columns": {"a": [1, 2]},
    "series": pd.Series([1, 2], name="a"),
    "chunks": (frame(a=[number]) for number in range(2)),
    "typed and empty": frame(a=pd.Series([], dtype="int64")),
    "dates": frame(a=[date(2024, 1, 1)]),
    "zones": frame(a=[pd.Timestamp("2024-01-01", tz=zone) for zone in ("Europe/Stockholm", "UTC")]),
}


def test_lossless_inputs_are_accepted(empty_store: FeatureStore, subtests: pytest.Subtests) -> None:
    row_counts = {"typed and empty": 0, "dates": 1, "decimals": 1}
    for title, rows in LOSSLESS_INPUTS.items():
        with subtests.test(title):
            group = empty_store.create_featuregroup(rows, title.replace(" ", "_"))
            assert group.schema.names == ["a"]
            assert group.read().count() == row_counts.get(title, 2)


def test_data_format_ignores_case(empty_store: FeatureStore, subtests: pytest.Subtests) -> None:
    for data_format in ("Parquet", "TFRecord", "CSV"):
        with subtests.test(data_format):
            dataset = empty_store.create_training_dataset(
                table(), f"made_{data_format.lower()}", label="y", data_format=data_format
            )
            assert dataset.manifest.data_format == data_format.lower()


def test_compression_ignores_case(empty_store: FeatureStore, subtests: pytest.Subtests) -> None:
    for data_format, codec in (("parquet", "zstd"), ("tfrecord", "Gzip")):
        with subtests.test(codec):
            dataset = empty_store.create_training_dataset(
                table(), f"made_{data_format}", label="y", data_format=data_format,
                compression=codec,
            )  # fmt: skip
            assert codec.upper() in dataset.manifest.layout.values()


def test_explain_unknown_key_suggests_near_keys(world: World) -> None:
    text = str(world.group.explain(key="aa", at=NOON))
    assert "No row has this key. Similar keys: 'a'" in text
    assert "Similar keys" not in str(world.group.explain(key="a", at=NOON - timedelta(days=1)))


def record_warnings(call: Callable[[], object]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        call()
    return list(records)


WARNED: list[Any] = [
    ("one class", lambda s: s.create_training_dataset(table(y=1), "made", label="y"), "1 in 20 rows"),
    ("no rows", lambda s: s.create_training_dataset(table()[:0].astype({"k": "string"}), "made", label="y"), "no rows"),
    ("future times", lambda s: s.create_featuregroup(
        table(t=datetime(2999, 1, 1, tzinfo=UTC), row=range(20)), "made", primary_key=["k", "row"], event_time="t"), "2999-01-01"),
    ("appended twice", lambda s: s.create_featuregroup(table(), "made").insert(table()), "the same 20 rows"),
    ("index with values", lambda s: s.create_featuregroup(
        table().drop_duplicates("k").set_index("k").rename_axis(None), "made"), "reset_index()"),
    ("dates as text", lambda s: s.create_featuregroup(table(t="2024-01-31"), "made"), "featurestore.cast(df, {'t': 'timestamp'})"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "word"), [pytest.param(*row[1:], id=row[0]) for row in WARNED])
def test_data_warning_points_to_caller_once(
    tmp_path: Path, call: Callable[[FeatureStore], object], word: str
) -> None:
    with featurestore.connect(tmp_path) as store:
        output = record_warnings(lambda: call(store))
    assert [warning.category for warning in output] == [DataWarning]
    assert word in str(output[0].message)
    assert output[0].filename == __file__
    assert len(str(output[0].message).splitlines()) == 1


def test_insert_reordered_rows_does_not_warn(empty_store: FeatureStore) -> None:
    group = empty_store.create_featuregroup(frame(a=[1, 2, 3]), "made")
    assert record_warnings(lambda: group.insert(frame(a=[3, 2, 1]))) == []


@pytest.mark.parametrize("as_of", ["2101-01-01", datetime(2101, 1, 1)])
def test_naive_as_of_warns_at_caller(world: World, as_of: Any) -> None:
    output = record_warnings(lambda: world.store.get_featuregroup("g", as_of=as_of))
    assert [warning.category for warning in output] == [NaiveTimeWarning]
    assert output[0].filename == __file__


def test_deleted_group_error_names_time_and_process(tmp_path: Path) -> None:
    with featurestore.connect(tmp_path) as store, featurestore.connect(tmp_path) as other_store:
        store.create_featuregroup(table(), "made")
        group_frame = store.get_featuregroup("made")
        other_store.delete_featuregroup("made", version=1)
        with pytest.raises(FeatureGroupNotFound, match=r"'made' v1 was deleted at .* by .*process"):
            group_frame.to_pandas()
        assert store.create_featuregroup(table(), "made").read().count() == 20


def test_command_line_hints_use_command_syntax(
    world: World, command_line: Callable[..., Any], subtests: pytest.Subtests
) -> None:
    hints = {
        "fg show gg": "did you mean g?",
        "td show made_bfore": "did you mean made_before?",
        "fg show g@v7": "the latest is g@v1",
        "job run nightly": "featurestore job register path/to/jobs.py",
    }
    for command, hint in hints.items():
        with subtests.test(command):
            words = [*command.split(), "--location", str(world.folder / "store")]
            output = command_line(*words, code=1)
            assert f"hint: {hint}" in output.err
            assert "featurestore." not in output.err


def test_command_line_wrong_location_creates_no_store(
    world: World, command_line: Callable[..., Any]
) -> None:
    output = command_line("fg", "list", "--location", str(world.folder / "stroe"), code=1)
    assert f"Stores nearby: '{world.folder / 'store'}'" in output.err
    assert f"hint: --location {world.folder / 'store'}" in output.err
    assert not (world.folder / "stroe").exists()


def test_job_register_import_error_names_line(
    world: World, command_line: Callable[..., Any], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    messages = {
        "import featurestore\nimport no_such_thing\n": "line 2: ModuleNotFoundError",
        "x = 1\n\n1 / 0\n": "line 3: ZeroDivisionError: division by zero",
        "def x(:\n": "line 1: SyntaxError",
    }
    for number, (text, message) in enumerate(messages.items()):
        with subtests.test(message):
            file = tmp_path / str(number) / "jobs.py"
            file.parent.mkdir()
            file.write_text(text)
            output = command_line(
                "job", "register", str(file), "--location", str(world.folder / "store"), code=1
            )
            assert f"error: {file} cannot be loaded, {message}" in output.err
            assert len(output.err.splitlines()) <= 2
