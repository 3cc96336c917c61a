"""The layout of published values: encoding, decoding, and the rule for entries."""

import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from featurestore.errors import PublishedValueMismatch
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.times import to_micros
from featurestore.serving.columns import compile_key, encode_keys
from featurestore.serving.layout import (
    Entry,
    ValueLayout,
    ValueStatus,
    current_entries,
    pack_entries,
    unpack_entries,
    value_sequence,
)
from featurestore.serving.seals import Sealer
from featurestore.serving.value_reads import ColumnDecoder

TIME = pa.timestamp("us", tz="UTC")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    "bool": (pa.bool_(), [True, None, False]),
    "int8": (pa.int8(), [1, None, -3]),
    "uint64": (pa.uint64(), [2**63, None, 1]),
    "text": (pa.string(), ["é", None, ""]),
    "float": (pa.float32(), [0.5, None, float("nan")]),
    "date": (pa.date32(), [date(2020, 1, 1), None, date(1960, 1, 1)]),
    "time": (TIME, [NOON, None, datetime(1950, 1, 1, tzinfo=UTC)]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.50"), None, Decimal("-" + "9" * 36 + ".99")]),
    "bytes": (pa.binary(), [b"\0", None, b""]),
    "numbers": (pa.list_(pa.float32()), [[1, 2], None, []]),
    "vector": (pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]]),
    "nulls": (pa.list_(pa.int8()), [[1, None], None, []]),
    "texts": (pa.list_(pa.string()), [["a", None], None, []]),
    "struct": (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))]), [{"a": 1}, None, {}]),
}


@pytest.fixture
def layout():
    schema = pa.schema([("id", pa.int64()), ("at", TIME), ("temp", pa.float64())])
    spec = FeatureGroupSpec("g", 1, schema, ("id",), event_time="at", ttl=timedelta(seconds=10))
    return ValueLayout.for_group(spec, ["temp"])


def sealed(values):
    return Sealer(b"", b"mine").seal([b"key"] * len(values), values)[1]


def test_values_of_every_type_equal_arrow_values():
    schema = pa.schema(
        [("id", pa.int64()), *[(name, dtype) for name, (dtype, _) in COLUMNS.items()]]
    )
    spec = FeatureGroupSpec("g", 1, schema, ("id",))
    # Slices, whose buffers start at an offset.
    arrays = {
        name: pa.array([values[0], *values, None], dtype).slice(1, 3)
        for name, (dtype, values) in COLUMNS.items()
    }
    layout = pickle.loads(pickle.dumps(ValueLayout.for_group(spec, arrays)))
    encoded = layout.encode(arrays, event_time=None, created_time=None, sequence=3)
    values = sealed(encoded)
    for row, value in enumerate(encoded):
        expected = repr(tuple(array[row].as_py() for array in arrays.values()))
        assert repr(layout.decode(values[row], 0)) == expected
        entries = unpack_entries(value)
        packed = pack_entries(entries * 2, sequence=3, fingerprint=layout.fingerprint)
        assert (value_sequence(packed), len(unpack_entries(packed))) == (3, 2)
        values += sealed([packed])
        assert repr(layout.decode(values[-1], 0)) == expected
    values += [None, *sealed([pack_entries([], sequence=3, fingerprint=layout.fingerprint)])]
    columns, statuses = ColumnDecoder(layout).decode(values, 0)
    assert [column.type for column in columns] == schema.types[1:]
    assert statuses == [None] * 6 + [ValueStatus.MISSING] * 2
    rows = [tuple([column[row].as_py() for column in columns]) for row in range(len(values))]
    decoded = layout.decode_all(values, 0)
    assert repr(rows[:6]) == repr(decoded[:6])
    assert decoded[6:] == statuses[6:]
    assert set(rows[6] + rows[7]) == {None}


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pa.int16(), -5),
        (pa.uint64(), 2**63 + 5),
        (pa.bool_(), True),
        (pa.string(), "é"),
        (pa.binary(), b"a"),
        (pa.date32(), date(1950, 1, 1)),
        (TIME, NOON),
        (pa.decimal128(10, 2), Decimal("1.5")),
    ],
)
def test_key_of_one_entity_equals_key_of_column(dtype, value):
    column = pa.array([value, None, value], dtype).slice(1)
    assert encode_keys([column]) == [None, compile_key([dtype])([value])]
    assert encode_keys([column, column])[1] == compile_key([dtype, dtype])([value, value])
    assert compile_key([dtype])([None]) is compile_key([dtype, dtype])([value, None]) is None


def test_decode_reads_the_current_entry_within_ttl(layout):
    times = pa.array([NOON, NOON + timedelta(seconds=5)], TIME)
    created_times = pa.array([NOON, NOON + timedelta(seconds=7)], TIME)
    values = layout.encode(
        {"temp": pa.array([1.0, 2.0])}, event_time=times, created_time=created_times, sequence=1
    )
    entries = [entry for value in values for entry in unpack_entries(value)]
    packed = pack_entries(entries, sequence=1, fingerprint=layout.fingerprint)
    first, value = sealed([values[0], packed])

    def decode_at(seconds):
        return layout.decode(value, to_micros(NOON + timedelta(seconds=seconds)))

    expected = [(1.0,), (1.0,), (2.0,), (2.0,), ValueStatus.MISSING, ValueStatus.STALE]
    assert [decode_at(seconds) for seconds in (0, 6, 7, 15, -1, 15.000001)] == expected
    for seconds, row in zip((0, 6, 7, 15, -1, 15.000001), expected, strict=True):
        now = to_micros(NOON + timedelta(seconds=seconds))
        # The first value has one entry, which is stale earlier than the second one.
        singles = [layout.decode(first, now), row]
        assert layout.decode_all([first, value], now) == singles
        (column,), statuses = ColumnDecoder(layout).decode([first, value], now)
        rows = zip(column.to_pylist(), statuses, strict=True)
        assert [status or (number,) for number, status in rows] == singles
    assert layout.encode_keys([pa.array([7])]) == [layout.encode_key([7])]
    assert layout.decode(None, 0) is ValueStatus.MISSING
    (tombstone,) = sealed([pack_entries([], sequence=2, fingerprint=layout.fingerprint)])
    assert layout.decode(tombstone, 0) is ValueStatus.MISSING


def test_decode_of_other_columns_raises(layout):
    value = pack_entries([Entry(0, 0, b"")], sequence=1, fingerprint=layout.fingerprint ^ 1)
    with pytest.raises(PublishedValueMismatch, match="other columns"):
        layout.decode(value, 0)


def test_current_entries_drops_dominated_and_past_rows():
    late, newest, future = Entry(1, 5, b"late"), Entry(3, 3, b"newest"), Entry(9, 9, b"future")
    earliest = Entry(0, 0, b"earliest")
    rows = [future, late, newest, earliest]
    assert current_entries(rows, horizon=2) == [earliest, newest, future]
    assert current_entries(rows, horizon=3) == [newest, future]
    assert current_entries(rows, horizon=9) == [future]
