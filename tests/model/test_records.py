"""Properties of records: round trips, order and omission of names, damage, and plain values."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from featurestore.errors import FormatTooNew
from featurestore.model.json_object import JsonObject, MalformedJson, translate_parse_errors
from featurestore.model.names import check_name
from featurestore.model.records import (
    AS_ARRAY,
    DEFAULT_IF_MISSING,
    INLINE,
    MICROSECONDS,
    OMIT_DEFAULT,
    Checked,
    Key,
    Range,
    Record,
    Valid,
    Version,
    codec_of,
    members,
)
from featurestore.model.times import Window

_SOURCE = members({"featuregroup": str, "version": Version}, {"live": bool})


@dataclass(frozen=True)
class Count:
    value: bool | int | float | str
    count: int


@dataclass(frozen=True)
class Part(Record, closed=True):
    path: Annotated[str, Valid(lambda path: ".." not in path, "a path below the dataset")]
    rows: int
    shape: tuple[int, ...] | None = None
    sizes: tuple[float | None, ...] = ()
    counts: tuple[Annotated[Count, AS_ARRAY], ...] = ()

    def check_json(self, data: Mapping[str, Any]) -> Part:
        if len(self.sizes) > self.rows:
            raise MalformedJson("is smaller than its sizes", "rows")
        return self


KEYS = ("name", "is_large", "parts", "window", "lookback", "every", "schema", "limits", "mode",
        "minimum", "sources", "tags", "seed", "note", "total")  # fmt: skip


@dataclass(frozen=True)
class Table(Record, format=3, subject="The table {name!r}", keys=KEYS):
    name: Annotated[str, Checked(check_name)]
    parts: tuple[Part, ...]
    window: Annotated[Window, INLINE]
    lookback: timedelta
    every: Annotated[timedelta | None, MICROSECONDS, Key("every_us")]
    schema: pa.Schema
    minimum: Annotated[int | float | str | None, Key("min")]
    total: Annotated[int, Range(1, 9), Key("sample.total")]
    seed: Annotated[int, Key("sample.seed")]
    limits: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    mode: Literal["append", "upsert"] = "append"
    sources: tuple[Annotated[Mapping[str, Any], _SOURCE], ...] = ()
    tags: Annotated[Mapping[str, str], OMIT_DEFAULT] = field(default_factory=dict)
    note: Annotated[str | None, DEFAULT_IF_MISSING] = None

    @property
    def is_large(self) -> bool:
        return len(self.parts) > 1


def make_table(**values: Any) -> Table:
    start = datetime(2024, 1, 2, tzinfo=UTC)
    default = {
        "name": "rides",
        "parts": (Part("train/0", 3, (2, 3), (1.5, None), (Count("a", 2), Count(True, 1))),),
        "window": Window(start, start + timedelta(hours=1)),
        "lookback": timedelta(days=7),
        "every": timedelta(minutes=5),
        "schema": pa.schema([("id", pa.int64()), ("price", pa.decimal128(5, 2))]),
        "minimum": 0.5,
        "total": 3,
        "seed": 7,
        "limits": {"share": (None, 0.3)},
        "sources": ({"featuregroup": "trips", "version": 1, "live": True, "more": [1]},),
        "tags": {"team": "traffic"},
        "note": "n",
    }
    return Table(**{**default, **values})


def find_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value in a JSON document, except the document."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*path, key)
        yield from find_paths(item, (*path, key))


def damage(path: tuple[str | int, ...], change: Callable[[Any, str | int], None]) -> Any:
    document = copy.deepcopy(make_table().to_json())
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return document


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: "__" not in name)
numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False))
parts = st.builds(
    Part,
    path=names,
    rows=st.integers(5, 2**63 - 1),
    shape=st.none() | st.lists(st.integers(0, 9)).map(tuple),
    sizes=st.lists(st.none() | numbers, max_size=5).map(tuple),
    counts=st.lists(
        st.builds(Count, st.booleans() | numbers | st.text(), st.integers(0, 9)), max_size=3
    ).map(tuple),
)
tables = st.builds(
    make_table,
    parts=st.lists(parts, max_size=3).map(tuple),
    lookback=st.integers(0, 10**12).map(lambda count: timedelta(microseconds=count)),
    every=st.none() | st.integers(0, 10**12).map(lambda count: timedelta(microseconds=count)),
    minimum=st.none() | numbers | st.text(),
    limits=st.dictionaries(st.text(), st.tuples(st.none() | numbers, st.none() | numbers)),
    mode=st.sampled_from(["append", "upsert"]),
    tags=st.dictionaries(st.text(), st.text()),
    note=st.none() | st.text(),
)


@given(tables)
def test_record_round_trip_through_text_is_equal(table: Table) -> None:
    document = table.to_json()
    assert Table.from_json(document) == table
    assert Table.from_json(json.loads(json.dumps(document))) == table


@given(tables)
def test_record_json_has_only_plain_values(table: Table) -> None:
    document = table.to_json()
    assert json.loads(json.dumps(document)) == document
    exact_types = {dict, list, str, int, float, bool, type(None)}
    values: list[Any] = [document]
    while values:
        value = values.pop()
        assert type(value) in exact_types
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


def test_record_json_keys_have_the_declared_order() -> None:
    assert list(make_table().to_json()) == [
        "format", "name", "is_large", "parts", "start", "end", "lookback", "every_us", "schema",
        "limits", "mode", "min", "sources", "tags", "sample", "note",
    ]  # fmt: skip
    assert make_table().to_json()["sample"] == {"seed": 7, "total": 3}


def test_record_default_is_omitted_and_read() -> None:
    document = make_table(tags={}, note=None).to_json()
    assert "tags" not in document
    assert document.pop("note") is None
    assert Table.from_json(document) == make_table(tags={}, note=None)


# The names whose values are not read, or are allowed to be missing.
UNREAD = {("is_large",), ("sources", 0, "more")}
OPTIONAL = {
    *UNREAD,
    ("tags",),
    ("tags", "team"),
    ("note",),
    ("limits", "share"),
    ("sources", 0, "live"),
}


@pytest.mark.parametrize("path", list(find_paths(make_table().to_json())), ids=str)
def test_record_damage_names_the_path(path: tuple[str | int, ...]) -> None:
    def remove(parent: Any, key: str | int) -> None:
        del parent[key]

    def replace(parent: Any, key: str | int) -> None:
        parent[key] = {"damaged": [[]]}

    dotted = "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" for key in path if key != "damaged"
    ).removeprefix(".")
    # Arrays of integers name an element as ``shape.1``; others name the array, or the object.
    accepted_paths = [dotted, dotted.replace("shape[", "shape.").replace("]", "")]
    accepted_paths += [
        dotted.rpartition("[")[0],
        dotted.rpartition(".")[0],
        dotted.partition("[")[0],
    ]
    if path not in OPTIONAL and not isinstance(path[-1], int):
        with pytest.raises(MalformedJson) as caught:
            Table.from_json(damage(path, remove))
        assert str(caught.value).startswith(tuple(filter(None, accepted_paths)))
    if path[:3] not in UNREAD and path not in UNREAD:
        with pytest.raises(MalformedJson) as caught:
            Table.from_json(damage(path, replace))
        assert str(caught.value).startswith(tuple(filter(None, accepted_paths)))


def test_record_errors_name_value_and_expectation() -> None:
    document = make_table().to_json()
    document["parts"][0]["counts"][1][1] = -1
    with pytest.raises(MalformedJson) as caught:
        Table.from_json(document)
    expected = "parts[0].counts[1][1] is -1, not an integer from 0 to 9223372036854775807"
    assert str(caught.value) == expected
    with pytest.raises(MalformedJson, match=r"^splits\[0\]\.parts\[0\]"):
        Table.from_json(JsonObject(document, "splits[0]"))
    pattern = r"^table 'rides': parts\[0\]\.counts"
    with pytest.raises(MalformedJson, match=pattern), translate_parse_errors("table 'rides'"):
        Table.from_json(document)


def test_record_check_adds_the_path_of_the_record() -> None:
    document = make_table().to_json()
    document["parts"][0]["rows"] = 1
    with pytest.raises(MalformedJson, match=r"^parts\[0\]\.rows is smaller than its sizes$"):
        Table.from_json(document)


def test_record_refuses_formats_and_unknown_names() -> None:
    document = make_table().to_json()
    with pytest.raises(FormatTooNew, match="The table 'rides' has format 4"):
        Table.from_json({**document, "format": 4})
    with pytest.raises(MalformedJson, match=r"^format is missing$"):
        Table.from_json({name: value for name, value in document.items() if name != "format"})
    assert Table.from_json({**document, "added_later": 1}) == make_table()
    document["parts"][0]["added_later"] = 1
    with pytest.raises(MalformedJson, match=r"^parts\[0\]\.added_later is an unknown name$"):
        Table.from_json(document)


def test_record_null_is_refused_for_omitted_default() -> None:
    with pytest.raises(MalformedJson, match=r"^tags is None, not an object$"):
        Table.from_json({**make_table().to_json(), "tags": None})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, True), (int, 1.0), (int, -1), (float, "1"), (float, True), (bool, 1), (str, None),
        (tuple[str, ...], "ab"), (tuple[str, ...], [1]), (tuple[float, float], [1.0]),
        (tuple[float, ...], [0.5, True]), (tuple[int, ...], [1, False]),
        (Mapping[str, str], []), (datetime, "yesterday"), (timedelta, "soon"), (Version, 0),
        (Literal["a", "b"], "c"), (pa.Schema, [{"name": "a", "type": "unknown"}]),
        (Count, []), (Annotated[Count, AS_ARRAY], {}),
    ],
    ids=str,
)  # fmt: skip
def test_codec_refuses_values_of_other_types(annotation: Any, value: Any) -> None:
    with pytest.raises(MalformedJson):
        codec_of(annotation).read(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 1), (float | None, 1), (float | str, 1), (str | float | None, 0), (int | str, 0.5),
        (tuple[float, ...], (0, 0.5)), (tuple[float | str, ...], (0, 0.5, "a")),
        (bool | float | str, True), (bool | float | str, 2), (Mapping[str, float | str], {"a": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_codec_of_numbers_reads_integers_and_fractions(annotation: Any, value: Any) -> None:
    result = codec_of(annotation).read(list(value) if isinstance(value, tuple) else value)
    assert result == value
    assert type(result) is type(value)


def test_codec_of_unsupported_annotation_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no JSON codec"):
        codec_of(set[str])
