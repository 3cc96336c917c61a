"""Doors: the places of the library where values enter, as functions from values to outcomes.

A door passes the value of each code to the library, and yields what came out on the other side: the
value that was stored, served, logged or matched, ``REFUSED`` for an error of the library and for a
comparison that no row meets, or ``RawError`` for any other exception.
"""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from starlette.testclient import TestClient
from typer.testing import CliRunner

import featurestore
from featurestore import experiments
from featurestore.cli import app
from featurestore.dbt.expectations import DbtColumns, NotConvertible, to_expectation
from featurestore.dbt.manifest import DbtTest
from featurestore.errors import FeatureStoreError
from featurestore.experiments import catalog
from featurestore.experiments.run import Run
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.plugins.validator import find_validator
from featurestore.server import create_app
from featurestore.store import FeatureStore
from tests.values import door_rules as rules
from tests.values.cases import REFUSED, TIMESTAMP, TYPES, VALUES, are_equal, fitted, value_of
from tests.values.door_rules import DOORS, KEYS, SCALARS, plain

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
Codes = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RawError:
    """An exception of another library."""

    text: str


@dataclass(frozen=True)
class Trial:
    """A value at a door: the column type, its code, and what came out and should have."""

    column: str
    code: str
    outcome: Any
    expected: Any

    @property
    def is_correct(self) -> bool:
        """Whether the value came out as expected, or was refused as expected."""
        if self.outcome is REFUSED or self.expected is REFUSED:
            return self.outcome is self.expected
        return are_equal(self.outcome, self.expected)

    @property
    def is_changed(self) -> bool:
        """Whether another value came out than the one that went in."""
        has_value = self.outcome is not REFUSED and not isinstance(self.outcome, RawError)
        return has_value and not self.is_correct


def attempt(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of a call, ``REFUSED`` or a ``RawError``."""
    try:
        return function(*arguments, **options)
    except (FeatureStoreError, NotConvertible):
        return REFUSED
    except Exception as error:
        return RawError(f"{type(error).__name__}: {error}")


def is_value(outcome: Any) -> bool:
    """Return whether an outcome is a value."""
    return outcome is not REFUSED and not isinstance(outcome, RawError)


# Values whose codes end up in columns of another type if a conversion rounds, cuts or guesses.
CHANGED_CODES = (
    *("True", "1", "1.5", "2**64", "1e300", "math.nan", "np.float32(0.1)", "Decimal('1.50')", "'1'"),
    *("'2024-01-31'", "b'a'", "dt.date(2024, 1, 31)", "dt.datetime(2024, 1, 31)", "[1]", "{'a': 1}"),
    *("dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)", "dt.time(12)"),
    *("np.datetime64('2024-01-31T12:00:00.123456789')", "np.datetime64('2024-01-31')"),
)  # fmt: skip


def is_telling(code: str, name: str) -> bool:
    """Return whether the verdict of a value is interesting: it fits, or pyarrow changes it."""
    value = value_of(code)
    if code in CHANGED_CODES or fitted(value, TYPES[name]) is not REFUSED:
        return True
    try:
        pa.array([value], TYPES[name])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


ALL: Codes = dict.fromkeys(TYPES, VALUES)
TELLING: Codes = {name: [code for code in VALUES if is_telling(code, name)] for name in TYPES}


def fitting_codes(name: str) -> list[str]:
    """Return the codes of the values that fit a type."""
    return [code for code in VALUES if fitted(value_of(code), TYPES[name]) is not REFUSED]


def other_codes(name: str) -> list[str]:
    """Return codes of five values or more that do not fit a type."""
    invalid_codes = [code for code in TELLING[name] if code not in fitting_codes(name)]
    return invalid_codes[:: len(invalid_codes) // 5]


# For slow doors.
SOME: Codes = {name: [*fitting_codes(name), *other_codes(name)] for name in TYPES}
FEW: Codes = {name: [*fitting_codes(name)[::4], *other_codes(name)[::2]] for name in TYPES}


def stored_values(name: str) -> list[Any]:
    """Return the different column values of a type that values fit to."""
    fitting = [fitted(value_of(code), TYPES[name]) for code in VALUES]
    # NaN equals no value.
    values = [value for value in fitting if value is not REFUSED and value == value]
    return list({repr(value): value for value in values}.values())


class Prepared:
    """A store with one group and view of each scalar type, and groups with columns of all types.

    The group ``g<n>`` has the column ``c`` of the n-th type with all values that fit it, and the
    column ``v``, the position of the value.
    """

    def __init__(self, store: FeatureStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.datasets: dict[str, Any] = {}
        self.values = {name: stored_values(name) for name in TYPES}
        self.numbers = {name: number for number, name in enumerate(TYPES)}
        self.columns = {name: f"c{number}" for name, number in self.numbers.items()}
        self.schema = pa.schema(
            [("id", pa.int64()), *[(self.columns[name], kind) for name, kind in TYPES.items()]]
        )
        for name in SCALARS:
            key = "c" if name in KEYS else "v"
            store.create_featuregroup(
                self.rows_of(name), self.group(name), primary_key=key, event_time="at",
                statistics=False,
            )  # fmt: skip
        store.create_featuregroup(
            self.schema.empty_table(), "narrow", primary_key="id", statistics=False
        )
        empty = self.schema.append(pa.field("at", TIMESTAMP)).empty_table()
        store.create_featuregroup(
            empty, "typed", primary_key="id", event_time="at", statistics=False
        )

    def rows_of(self, name: str) -> pa.Table:
        """Return the rows of the group of a type."""
        values = self.values[name]
        times = pa.array([START] * len(values), TIMESTAMP)
        column = pa.array(values, TYPES[name])
        return pa.table({"c": column, "v": range(len(values)), "at": times})

    def group(self, name: str) -> str:
        """Return the name of the group of a type."""
        return f"g{self.numbers[name]}"

    def keyed(self, column: str, code: str, position: Any, key: Any) -> Trial:
        """Return the trial of a key from the position of the row that it found; None is no row."""
        is_stored = any(are_equal(key, value) for value in self.values[column])
        if is_value(position):
            position = REFUSED if position is None else self.values[column][position]
        return Trial(column, code, position, key if is_stored else REFUSED)

    def matching(self, column: str, code: str, positions: Any, value: Any) -> Trial:
        """Return the trial of a comparison from the rows that it matched.

        Rows with equal values, such as 0.0 and -0.0, match together.
        """
        column_values = self.values[column]
        equal = [number for number, each in enumerate(column_values) if each == value]
        if not is_value(positions):
            return Trial(column, code, positions, value if equal else REFUSED)
        matches: Any = [column_values[position] for position in sorted(positions)]
        expected: Any = [column_values[position] for position in equal]
        return Trial(column, code, matches or REFUSED, expected or REFUSED)

    @cached_property
    def keyed_servers(self) -> dict[str, Any]:
        """A vector server of the group of each key type."""
        servers = {}
        for name in KEYS:
            view = self.store.create_feature_view(
                f"view_{self.group(name)}", features=[f"{self.group(name)}.v"]
            )
            self.store.publish(view.name)
            servers[name] = view.server()
        return servers

    @cached_property
    def request_view(self) -> Any:
        """A published view that returns request values of each type, and ``id``, as features."""
        names = ["id", *[self.columns[name] for name in DOORS["request values"].types]]
        labels = self.schema.append(pa.field("k", TYPES["int64"])).append(pa.field("at", TIMESTAMP))
        self.store.create_featuregroup(
            labels.empty_table(), "requests", primary_key="id", event_time="at", statistics=False
        )
        self.store.create_featuregroup([{"k": 1, "known": True}], "k", primary_key="k")
        features = [featurestore.feature(f"r_{name}", name) for name in names]
        view = self.store.create_feature_view(
            "request_view", features=["k.known", *features], labels="requests"
        )
        self.store.publish(view.name)
        return view

    def entity(self, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entity of the request view, with values by type."""
        entity: dict[str, Any] = dict.fromkeys(self.columns.values())
        entity |= {self.columns[name]: value for name, value in values.items()}
        return {**entity, "id": number, "k": 1}

    def dataset(self, name: str, columns: Mapping[str, pa.Array], **options: Any) -> Any:
        """Return a training dataset of columns, created on first use."""
        if name not in self.datasets:
            self.datasets[name] = self.store.create_training_dataset(
                pa.table(dict(columns)), name, progress=False, statistics=False, **options
            )
        return self.datasets[name]

    @cached_property
    def echo(self) -> Any:
        """A registered model with an input of each type, which remembers its inputs."""
        names = DOORS["inputs of models"].types
        columns = {**input_columns(self, names), "y": pa.array([0.0, 1.0])}
        dataset = self.dataset("inputs", columns, label="y", data_format="parquet")
        record = RunRecord(
            id="20240101-000000-echo",
            name="echo",
            kind="launch",
            state="finished",
            created=START.isoformat(),
            dataset=RunDataset(
                dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path
            ),
        )
        catalog.save(self.store.session, record)
        artifacts = Path(Run(self.store.session, record).path) / "artifacts"
        artifacts.mkdir(parents=True)
        (artifacts / "model.pkl").write_bytes(pickle.dumps(Echo()))
        return experiments.register_model(
            record.id, "echo", trust=True, arrays="columns", store=self.store
        )

    @cached_property
    def request_server(self) -> Any:
        """A server of the request view."""
        return self.request_view.server()


Door = Callable[[Prepared, Codes], Iterator[Trial]]
PASSAGES: dict[str, Door] = {}


def door(name: str) -> Callable[[Door], Door]:
    """Register a function as a door."""

    def register(function: Door) -> Door:
        PASSAGES[name] = function
        return function

    return register


def pairs(codes: Codes, door_name: str) -> list[tuple[str, str, Any]]:
    """Return the types of a door with their codes and values."""
    return [
        (name, code, value_of(code))
        for name in DOORS[door_name].types
        for code in codes.get(name, ())
    ]


def batches(trials: Sequence[tuple[str, str, Any]]) -> Iterator[dict[str, tuple[str, Any]]]:
    """Yield one value of each type at a time, as a code and a value by type."""
    by_type: dict[str, list[tuple[str, str, Any]]] = {}
    for trial in trials:
        by_type.setdefault(trial[0], []).append(trial)
    for row in zip_longest(*by_type.values()):
        yield {name: (code, value) for name, code, value in filter(None, row)}


# -- Writes --------------------------------------------------------------------------------------


def write_trials(
    prepared: Prepared,
    codes: Codes,
    door_name: str,
    to_frame: Callable[[dict[str, Any]], Any],
    expect: Callable[[Any, pa.DataType], Any] = fitted,
) -> Iterator[Trial]:
    """Write all values that fit as columns of one row, and the others one by one."""
    store, group = prepared.store, prepared.store.featuregroup("narrow")
    fitting: list[tuple[str, str, Any]] = []
    for name, code, value in pairs(codes, door_name):
        try:
            to_frame({"id": 1, "c": value})
        except Exception:  # the library of the frame does not have the value
            continue
        expected = expect(value, TYPES[name])
        if expected is not REFUSED:
            fitting.append((name, code, value))
            continue
        version = group.delta_version
        column = prepared.columns[name]
        outcome = attempt(group.insert, to_frame({"id": version, column: value}))
        if is_value(outcome):
            rows = group.read().filter(f"id = {version}").to_arrow().to_pylist()
            outcome = rows[0][column]
        elif group.delta_version != version:
            outcome = RawError("rows were written")
        yield Trial(name, code, outcome, expected)
    wide = f"wide_{list(DOORS).index(door_name)}"
    fields = [pa.field(f"c{number}", TYPES[name]) for number, (name, *_) in enumerate(fitting)]
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    store.create_featuregroup(schema.empty_table(), wide, primary_key="id", statistics=False)
    values = {f"c{number}": value for number, (*_, value) in enumerate(fitting)}
    store.insert_into_featuregroup(to_frame({"id": 1, **values}), wide)
    (row,) = store.get_featuregroup(wide).to_arrow().to_pylist()
    for number, (name, code, value) in enumerate(fitting):
        yield Trial(name, code, row[f"c{number}"], expect(value, TYPES[name]))


@door("rows of a write")
def rows_of_writes(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    return write_trials(prepared, codes, "rows of a write", lambda row: [row])


@door("pandas frames of a write")
def pandas_frames(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_frame(row: dict[str, Any]) -> pd.DataFrame:
        columns = {name: pd.Series([value], dtype=object) for name, value in row.items()}
        return pd.DataFrame({**columns, "id": [row["id"]]})

    def expect(value: Any, kind: pa.DataType) -> Any:
        return None if isinstance(value, float) and value != value else fitted(value, kind)

    return write_trials(prepared, codes, "pandas frames of a write", to_frame, expect)


@door("polars frames of a write")
def polars_frames(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_frame(row: dict[str, Any]) -> pl.DataFrame:
        frame = pl.DataFrame([pl.Series(name, [value]) for name, value in row.items()])
        check_held(row, frame.to_dicts()[0])
        return frame

    return write_trials(prepared, codes, "polars frames of a write", to_frame)


@door("pyarrow tables of a write")
def pyarrow_tables(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_frame(row: dict[str, Any]) -> pa.Table:
        table = pa.table({name: pa.array([value]) for name, value in row.items()})
        check_held(row, table.to_pylist()[0])
        return table

    return write_trials(prepared, codes, "pyarrow tables of a write", to_frame)


def check_held(row: dict[str, Any], frame_row: dict[str, Any]) -> None:
    """Raise TypeError if a frame has another value than it was made of."""
    for name, value in row.items():
        if repr(plain(frame_row[name])) != repr(plain(value)):
            raise TypeError(f"{value!r} became {frame_row[name]!r}")


# -- Joins and serving ---------------------------------------------------------------------------


@door("labels of a join")
def labels_of_joins(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "labels of a join"):
        labels = [{"c": value, "asked": START + HOUR}]
        features = [f"{prepared.group(name)}.v"]
        result = attempt(
            lambda features=features, labels=labels: (
                prepared.store.get_features(features, labels=labels, label_time="asked")
                .to_arrow()
                .to_pylist()[0]
            )
        )
        if is_value(result) and not is_label(result["c"], value):
            yield Trial(name, code, result["c"], value)
        position = result["v"] if is_value(result) else result
        yield prepared.keyed(name, code, position, rules.fitted_label(value, name))


def is_label(label: Any, value: Any) -> bool:
    """Return whether the value of a label column is the one of the rows."""
    value = plain(value)
    if isinstance(value, dt.datetime):
        return bool(label == fitted(value, TIMESTAMP))
    return bool(label == value) or label != label


@door("entities")
def entities(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "entities"):
        vector = attempt(prepared.keyed_servers[name].get_vector, {"c": value})
        position = vector["v"] if is_value(vector) else vector
        yield prepared.keyed(name, code, position, fitted(value, TYPES[name]))


@door("request values")
def request_values(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "request values"):
        vector = attempt(prepared.request_server.get_vector, prepared.entity(1, {name: value}))
        outcome = vector[f"r_{prepared.columns[name]}"] if is_value(vector) else vector
        yield Trial(name, code, outcome, rules.fitted_request(value, name))


@door("logged vectors")
def logged_vectors(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    trials = pairs(codes, "logged vectors")
    fitting = [trial for trial in trials if fitted(trial[2], TYPES[trial[0]]) is not REFUSED]
    refused = [
        {name: (code, value)} for name, code, value in trials if (name, code, value) not in fitting
    ]
    # The values of each type are served in one process, so that the first ones cannot set the types.
    requests = [*batches(fitting), *refused]
    with prepared.request_view.server(log_vectors="logged", log_sample=1) as server:
        vectors = []
        for number, batch in enumerate(requests):
            values = {name: value for name, (_, value) in batch.items()}
            vectors.append(attempt(server.get_vector, prepared.entity(number, values)))
    rows = prepared.store.get_featuregroup("logged").to_arrow().to_pylist()
    logged = {row["r_id"]: row for row in rows}
    for number, (batch, vector) in enumerate(zip(requests, vectors, strict=True)):
        for name, (code, _) in batch.items():
            column = f"r_{prepared.columns[name]}"
            outcome, expected = logged.get(number, REFUSED), REFUSED
            if is_value(vector):
                expected = vector[column]
            if is_value(outcome):
                outcome = outcome[column]
            yield Trial(name, code, outcome, expected)


@door("REST bodies")
def rest_bodies(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    _ = prepared.keyed_servers
    client = TestClient(create_app(prepared.store), base_url="http://localhost")
    for name, code, value in pairs(codes, "REST bodies"):
        document = rules.json_form(value, name)
        if document is REFUSED:
            continue
        address = f"/api/v1/featureviews/view_{prepared.group(name)}/vectors"
        response = client.post(address, json={"entities": [{"c": document}]})
        position: Any = REFUSED if response.status_code == 400 else RawError(response.text)
        if response.status_code == 200:
            position = response.json()["vectors"][0]["v"]
        yield prepared.keyed(name, code, position, rules.fitted_json(document, name))


# -- Models and readers --------------------------------------------------------------------------


class Echo:
    """A model that remembers its inputs."""

    received: ClassVar[dict[str, Any]] = {}

    def predict(self, x: Any) -> Any:
        Echo.received = x
        return np.zeros(len(next(iter(x.values()))))


def input_columns(prepared: Prepared, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return columns with two values of each type."""
    return {
        prepared.columns[name]: pa.array(
            [prepared.values[name][row] for row in (0, -1)], TYPES[name]
        )
        for name in names
    }


@door("inputs of models")
def model_inputs(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    names = DOORS["inputs of models"].types
    model = prepared.echo
    usual = {prepared.columns[name]: prepared.values[name][0] for name in names}
    trials = pairs(codes, "inputs of models")
    fitting = [trial for trial in trials if rules.fitted_input(trial[2], trial[0]) is not REFUSED]
    refused = [
        {name: (code, value)} for name, code, value in trials if (name, code, value) not in fitting
    ]
    for batch in [*batches(fitting), *refused]:
        row = usual | {prepared.columns[name]: value for name, (_, value) in batch.items()}
        Echo.received = {}
        scored = attempt(
            lambda row=row: prepared.store.score(model, labels=[row], trust=True).to_arrow()
        )
        for name, (code, value) in batch.items():
            outcome = scored
            if is_value(scored):
                outcome = plain(Echo.received[prepared.columns[name]][0])
            expected = rules.yielded(rules.fitted_input(value, name), name)
            yield Trial(name, code, outcome, expected)


@door("`nulls=` of readers")
def reader_nulls(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    columns = {
        prepared.columns[name]: pa.array([None, prepared.values[name][0]], TYPES[name])
        for name in DOORS["`nulls=` of readers"].types
    }
    dataset = prepared.dataset("nulls", columns, data_format="parquet")
    for name, code, value in pairs(codes, "`nulls=` of readers"):
        column = prepared.columns[name]

        def filled(column: str = column, value: Any = value) -> Any:
            reader = dataset.reader(
                "train", global_batch_size=2, columns=[column], nulls={column: value}, shuffle=False
            )
            (batch,) = reader.batches()
            return batch[column]

        outcome = attempt(filled)
        expected = rules.yielded(rules.fitted_fill(value, name), name)
        if is_value(outcome):
            default = rules.yielded(prepared.values[name][0], name)
            cells = [plain(cell) for cell in outcome]
            outcome = next((cell for cell in cells if not are_equal(cell, default)), default)
        yield Trial(name, code, outcome, expected)


@door("`class_weights=`")
def class_weights(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    types = DOORS["`class_weights=`"].types
    datasets = {
        name: prepared.dataset(
            f"classes_{prepared.numbers[name]}",
            {"c": prepared.rows_of(name)["c"], "v": prepared.rows_of(name)["v"]},
            label="c",
            data_format="parquet",
        )
        for name in types
    }
    for name, code, value in pairs(codes, "`class_weights=`"):
        if isinstance(value, list | dict | bytearray | np.ndarray):
            continue

        def positions(name: str = name, value: Any = value) -> Any:
            same = (plain(value), rules.fitted_class(value, name))
            different = [each for each in prepared.values[name] if each not in same]
            weights = {value: 3.0, **dict.fromkeys(different, 1.0)}
            rows = len(prepared.values[name])
            reader = datasets[name].reader("train", global_batch_size=rows, class_weights=weights)
            (batch,) = reader.batches()
            return batch["v"][batch["sample_weight"] == 3].tolist()

        yield prepared.matching(name, code, attempt(positions), rules.fitted_class(value, name))


# -- Windows and explanations --------------------------------------------------------------------


def fill_trials(
    prepared: Prepared,
    codes: Codes,
    door_name: str,
    get_features: Callable[[list[Any]], Any],
) -> Iterator[Trial]:
    """Fill windows without rows: all values that fit in turn, and the others one by one."""
    trials = pairs(codes, door_name)
    fitting = [trial for trial in trials if fitted(trial[2], TYPES[trial[0]]) is not REFUSED]
    refused = [
        {name: (code, value)} for name, code, value in trials if (name, code, value) not in fitting
    ]
    for batch in [*batches(fitting), *refused]:

        def filled(batch: Any = batch) -> Any:
            windows = [
                featurestore.window(
                    f"typed.{prepared.columns[name]}",
                    "last",
                    over="1d",
                    fill_value=value,
                    name=prepared.columns[name],
                )
                for name, (_, value) in batch.items()
            ]
            return get_features(windows).to_arrow().to_pylist()[0]

        row = attempt(filled)
        for name, (code, value) in batch.items():
            outcome = row[prepared.columns[name]] if is_value(row) else row
            yield Trial(name, code, outcome, fitted(value, TYPES[name]))


FILL_LABELS: dict[str, Any] = {"labels": [{"id": 1, "asked": START}], "label_time": "asked"}


@door("`fill_value=` of windows")
def window_fills(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def get_features(windows: list[Any]) -> Any:
        return prepared.store.get_features(windows, **FILL_LABELS)

    return fill_trials(prepared, codes, "`fill_value=` of windows", get_features)


@door("`fill_value=` of views")
def view_fills(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def get_features(windows: list[Any]) -> Any:
        prepared.store.create_feature_view("fills", features=windows)
        # The stored definition is JSON.
        return prepared.store.get_feature_view("fills").get_features(**FILL_LABELS)

    return fill_trials(prepared, codes, "`fill_value=` of views", get_features)


@door("`explain(key=)`")
def explained_keys(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "`explain(key=)`"):
        group = prepared.store.featuregroup(prepared.group(name))
        explanation = attempt(group.explain, key={"c": value}, at=START)
        position = explanation
        if is_value(explanation):
            position = explanation.row.values["v"] if explanation.row else None
        yield prepared.keyed(name, code, position, rules.fitted_key(value, name))


@door("`explain_window(key=)`")
def explained_window_keys(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "`explain_window(key=)`"):
        group = prepared.store.featuregroup(prepared.group(name))
        window = f"{prepared.group(name)}.v|last|1d"
        explanation = attempt(group.explain_window, window, key={"c": value}, at=START + HOUR)
        position = explanation.value if is_value(explanation) else explanation
        yield prepared.keyed(name, code, position, rules.fitted_key(value, name))


@door("`--key`")
def command_line_keys(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "`--key`"):
        text = rules.text_form(value, name)
        if text is REFUSED:
            continue
        words = ["fg", "explain", prepared.group(name), "--at", START.isoformat()]
        words = ["--location", prepared.store.location, "--output", "json", *words]
        result = CliRunner().invoke(app, [*words, "--key", f"c={text}"])
        position: Any = REFUSED
        if result.exit_code == 0:
            row = json.loads(result.stdout)["row"]
            position = row["values"]["v"] if row else None
        elif not isinstance(result.exception, FeatureStoreError):
            position = RawError(repr(result.exception))
        yield prepared.keyed(name, code, position, rules.fitted_text(text, name))


# -- Comparisons ---------------------------------------------------------------------------------


@door("`filter` and `where`")
def conditions(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "`filter` and `where`"):
        literal = rules.literal_form(value)
        if literal is REFUSED:
            continue
        frame = prepared.store.get_featuregroup(prepared.group(name))
        positions = attempt(
            lambda frame=frame, literal=literal: (
                frame.filter(f"c = {literal}").to_arrow()["v"].to_pylist()
            )
        )
        yield prepared.matching(name, code, positions, rules.compared(value, name))


def expectation_trials(
    prepared: Prepared,
    trials: Sequence[tuple[str, str, Any]],
    to_rule: Callable[[str, Any], dict[str, Any]],
    to_expected: Callable[[Any, str], Any],
) -> Iterator[Trial]:
    """Check one expectation for each value; the rows that meet it are the matches."""
    validator = find_validator()
    by_type: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, code, value in trials:
        plain_rules = attempt(lambda n=name, v=value: validator.normalize([to_rule(n, v)]))
        by_type.setdefault(name, []).append((code, value, plain_rules))
    for name, checked in by_type.items():
        rows = prepared.rows_of(name)
        valid = {code: rule for code, _, rule in checked if is_value(rule)}
        outcomes = check_rules(rows, valid)
        for code, value, rule in checked:
            positions = outcomes.get(code, rule)
            yield prepared.matching(name, code, positions, to_expected(value, name))


def check_rules(rows: pa.Table, valid_rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the positions of the rows that meet each expectation.

    A check takes milliseconds, however many expectations it has, and fails for all of them.
    """
    outcomes = attempt(find_validator().check, rows, [rule for (rule,) in valid_rules.values()])
    if not is_value(outcomes):
        if len(valid_rules) == 1:
            return dict.fromkeys(valid_rules, outcomes)
        codes = list(valid_rules)
        halves = (codes[: len(codes) // 2], codes[len(codes) // 2 :])
        results = [check_rules(rows, {code: valid_rules[code] for code in half}) for half in halves]
        return {**results[0], **results[1]}
    positions: dict[str, Any] = {}
    for code, outcome in zip(valid_rules, outcomes, strict=True):
        failing = outcome.failing
        passing = np.ones(len(rows), np.bool_) if failing is None else ~np.asarray(failing)
        positions[code] = np.flatnonzero(passing).tolist()
        if not outcome.result.success and failing is None:
            positions[code] = REFUSED
    return positions


@door("value sets of expectations")
def value_sets(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_rule(_: str, value: Any) -> dict[str, Any]:
        arguments = {"column": "c", "value_set": [value]}
        return {"type": "expect_column_values_to_be_in_set", "kwargs": arguments}

    trials = pairs(codes, "value sets of expectations")
    return expectation_trials(prepared, trials, to_rule, rules.expected_of_json)


@door("limits of expectations")
def limits(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_rule(_: str, value: Any) -> dict[str, Any]:
        arguments = {"column": "c", "min_value": value, "max_value": value}
        return {"type": "expect_column_values_to_be_between", "kwargs": arguments}

    trials = pairs(codes, "limits of expectations")
    return expectation_trials(prepared, trials, to_rule, rules.expected_of_json)


@door("accepted values of dbt")
def accepted_values(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    def to_rule(name: str, value: Any) -> Any:
        test = DbtTest("t", "accepted_values", None, {"values": [value]}, "c")
        return to_expectation(test, DbtColumns(prepared.rows_of(name).schema))

    trials = [
        trial
        for trial in pairs(codes, "accepted values of dbt")
        # YAML has no other values.
        if type(trial[2]) in (bool, int, float, str)
    ]
    return expectation_trials(prepared, trials, to_rule, rules.fitted_dbt)


# -- Sources and splits --------------------------------------------------------------------------


@door("columns of sources")
def source_columns(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    trials = []
    for name, code, value in pairs(codes, "columns of sources"):
        text = rules.text_form(value, name)
        if text is not REFUSED and text:
            trials.append((name, code, text))
    fitting = [trial for trial in trials if rules.fitted_text(trial[2], trial[0]) is not REFUSED]
    refused = [
        {name: (code, text)} for name, code, text in trials if (name, code, text) not in fitting
    ]
    for number, batch in enumerate([*batches(fitting), *refused]):
        folder = prepared.folder / f"csv{number}"
        folder.mkdir()
        names = [prepared.columns[name] for name in batch]
        lines = [",".join(names), ",".join(f'"{text}"' for _, text in batch.values())]
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")
        dtypes = {prepared.columns[name]: dtype_name(name) for name in batch}
        prepared.store.add_source(f"csv{number}", str(folder), options={"dtypes": dtypes})
        row = attempt(
            lambda number=number: (
                prepared.store.read_source(f"csv{number}", path="rows.csv")
                .to_arrow()
                .to_pylist()[0]
            )
        )
        for name, (code, text) in batch.items():
            outcome = row[prepared.columns[name]] if is_value(row) else row
            yield Trial(name, code, outcome, rules.fitted_text(text, name))


def dtype_name(name: str) -> str:
    """Return the name of a type in ``dtypes=``."""
    return name.replace("decimal128", "decimal")


@door("boundaries of splits")
def boundaries(prepared: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "boundaries of splits"):
        split = attempt(
            lambda value=value: featurestore.TimeSplit(
                "c", {"before": (None, value), "after": (value, None)}
            )
        )
        outcome = split.ranges[0][2] if is_value(split) else split
        yield Trial(name, code, outcome, rules.fitted_boundary(value, name))


@door("times of jobs")
def times_of_jobs(_: Prepared, codes: Codes) -> Iterator[Trial]:
    for name, code, value in pairs(codes, "times of jobs"):
        job = attempt(
            featurestore.sql_job,
            "job",
            sql="select id, at from typed",
            inputs={"typed": "typed"},
            featuregroup="computed",
            primary_key="id",
            event_time="at",
            schedule="0 * * * *",
            window="1h",
            start=value,
        )
        outcome = job.spec.schedule.start if is_value(job) else job
        yield Trial(name, code, outcome, rules.fitted_boundary(value, name))
