"""Round trips of models: train, register, score in batch, predict online, and compare with plain Python.

A case is a framework, a form of the data, a handling of nulls and a column order. The models add
their columns with a weight per name, or are trees, so a wrong order, a wrong null or a missing
transformation changes the predictions. The expected predictions are computed in plain Python from the
rows of the feature group.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from featurestore import experiments
from featurestore import transform as t
from featurestore.errors import FeatureStoreError, InvalidArgument
from featurestore.experiments import catalog
from featurestore.experiments.context import Context
from featurestore.experiments.models import Model
from featurestore.experiments.run import Run
from featurestore.experiments.tasks import Task
from featurestore.model.run_record import RunDataset, RunRecord
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

START = datetime(2024, 1, 1, tzinfo=UTC)
SHOPS = range(24)
# The shops from this one on have nulls.
FIRST_GAP = 16
ORDERS = {
    "dataset": ("size", "staff", "open", "temp"),
    "reversed": ("temp", "open", "staff", "size"),
    "subset": ("open", "size"),
}
WEIGHTS = {"size": 1.0, "staff": 10.0, "open": 100.0, "temp": 1000.0}
WEIGHTS |= {"staff_present": 5.0, "open_present": 50.0}
FILLS = {"staff": 3, "open": True}
# The linear models use this value instead of NaN.
NAN_VALUE = 4.0


@dataclass(frozen=True)
class Case:
    """A cell of the table."""

    framework: str
    form: str
    nulls: str
    order: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the training in the requested order."""
        return ORDERS[self.order]

    @property
    def shops(self) -> list[int]:
        """The shops of the dataset: those without nulls, or all."""
        return list(SHOPS)[: FIRST_GAP if self.nulls == "none" else None]

    @property
    def fills(self) -> dict[str, Any]:
        """The fill values of the columns."""
        return {name: value for name, value in FILLS.items() if name in self.columns}


@dataclass(frozen=True)
class TrainingRows:
    """The rows that a training function reads.

    ``values`` is an array per column of a reader, with masks, one matrix, or a DataFrame.
    """

    names: tuple[str, ...]
    values: Any

    @property
    def are_columns(self) -> bool:
        """Whether the values are the arrays of a reader."""
        return isinstance(self.values, dict)

    @property
    def is_frame(self) -> bool:
        """Whether the values are a DataFrame."""
        return not isinstance(self.values, dict | np.ndarray)

    @property
    def matrix(self) -> npt.NDArray[np.float32]:
        """The values as one array of shape (rows, names)."""
        if isinstance(self.values, np.ndarray):
            return self.values
        return to_matrix(self.values, names=self.names)

    @property
    def weights(self) -> list[float]:
        """The weights of a linear model in the order of the names."""
        return [WEIGHTS[name] for name in self.names]

    @property
    def targets(self) -> npt.NDArray[np.float64]:
        """The value that a model learns for each row."""
        filled = np.nan_to_num(self.matrix.astype(np.float64), nan=NAN_VALUE)
        return np.asarray(filled @ np.array(self.weights))

    def sum_row(self, row: Sequence[float]) -> float:
        """Return the prediction of a linear model for a row, in the order of the names."""
        filled = [NAN_VALUE if math.isnan(value) else value for value in row]
        return math.fsum(map(float.__mul__, filled, self.weights))


def to_matrix(columns: Any, *, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return columns of a DataFrame or a dict as one array of shape (rows, names), with NaN."""
    # None is NaN in this conversion.
    return np.stack([np.array(list(columns[name]), np.float32) for name in names], axis=1)


@dataclass(frozen=True)
class Fitted:
    """A fitted model, its prediction for a row in plain Python, and a DataFrame that it takes."""

    model: Any
    predict_row: Callable[[Sequence[float]], float]
    frame: Any = None


Fit = Callable[[Case, TrainingRows], Fitted]


class Shops:
    """A store with a published view and two datasets: ``full`` without nulls, ``gaps`` with nulls."""

    def __init__(self, store: FeatureStore) -> None:
        self.store = store
        self.rows = _shop_rows()
        self.run_numbers = itertools.count()
        store.create_featuregroup(self.rows, "shops", primary_key="shop")
        now = datetime.now(UTC)
        labels = [{"shop": shop, "at": now, "sales": float(shop)} for shop in SHOPS]
        store.create_featuregroup(labels, "labels", primary_key="shop", event_time="at")
        view = store.create_feature_view(
            "shops",
            features=[f"shops.{name}" for name in ORDERS["dataset"]],
            labels="labels",
            label="sales",
            transformations={"size": t.standardize(), "temp": t.standardize()},
        )
        full = view.create_training_dataset("full", labels=labels[:FIRST_GAP], progress=False)
        self.datasets = {
            "full": full,
            "gaps": view.create_training_dataset("gaps", progress=False),
        }
        store.publish("shops")

    def dataset_of(self, case: Case) -> TrainingDataset:
        """Return the training dataset of a case."""
        return self.datasets["full" if case.nulls == "none" else "gaps"]

    def begin(self, case: Case) -> RunRecord:
        """Save the record of a new run."""
        dataset = self.dataset_of(case)
        manifest_hash = dataset.manifest.content_hash
        record = RunRecord(
            id=f"20240101-000000-{next(self.run_numbers):06x}",
            name="round_trips",
            kind="launch",
            state="finished",
            created=START.isoformat(),
            dataset=RunDataset(dataset.name, dataset.version, manifest_hash, dataset.path),
        )
        catalog.save(self.store.session, record)
        return record

    def train(self, case: Case, fit: Fit) -> tuple[Run, TrainingRows, Fitted]:
        """Call a training function in this process, and return its finished run."""
        record = self.begin(case)
        dataset = record.dataset
        assert dataset is not None
        directory = Run(self.store.session, record).path
        task = Task(directory, dataset={"path": dataset.path, "manifest": dataset.manifest})
        context = Context(task)
        rows = read_training_rows(case, context)
        fitted = fit(case, rows)
        context.save(fitted.model, inputs=fitted.frame)
        context.close()
        states = [*(reader.state() for reader in context.readers), *context.matrices]
        return self.finish(record, states), rows, fitted

    def finish(self, record: RunRecord, states: Sequence[Mapping[str, Any]]) -> Run:
        """Save the record of a run with the states of its readers."""
        record = replace(record, readers=tuple(states))
        catalog.save(self.store.session, record)
        return Run(self.store.session, record)

    def input_rows(self, case: Case, names: Sequence[str]) -> Iterator[list[float]]:
        """Yield the inputs of the model for each shop, by name."""
        shop_rows = [self.rows[shop] for shop in case.shops]
        for shop_row in shop_rows:
            row = []
            for name in names:
                value = shop_row[name.removesuffix("_present")]
                if name.endswith("_present"):
                    value = value is not None
                elif value is None:
                    value = {"fill": FILLS.get(name), "mask": 0}.get(case.nulls, math.nan)
                elif case.form == "transformed" and name in ("size", "temp"):
                    column = [other[name] for other in shop_rows]
                    value = (value - statistics.fmean(column)) / statistics.pstdev(column)
                row.append(float(np.float32(value)))
            yield row


def _shop_rows() -> list[dict[str, Any]]:
    """Return the features of each shop; multiples of 1/2 are exact in all types."""
    random = np.random.default_rng(3)
    rows = []
    for shop in SHOPS:
        row: dict[str, Any] = {"shop": shop, "size": float(random.integers(-9, 9)) / 2}
        row |= {"staff": int(random.integers(5, 20)), "open": bool(random.integers(2))}
        row["temp"] = float(random.integers(-9, 9)) / 2
        if shop >= FIRST_GAP:
            row["staff" if shop % 2 else "open"] = None
        rows.append(row)
    return rows


def read_training_rows(case: Case, context: Context) -> TrainingRows:
    """Read the training rows in the form of a case, as a training function does."""
    columns = None if case.order == "dataset" else list(case.columns)
    if case.form == "reader":
        nulls: Any = {"none": "error", "fill": case.fills}.get(case.nulls, case.nulls)
        if nulls == "nan":
            nulls = dict.fromkeys(case.fills, math.nan)
        reader = context.reader(
            "train", global_batch_size=8, columns=columns, nulls=nulls, transformed=False
        )
        batches = list(reader.batches())
        names = tuple(name for name in batches[0] if name != "sales")
        values = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
        return TrainingRows(names, values)
    if case.form in ("pandas", "polars"):
        frame = context.dataset.read("train")
        rows = frame.to_pandas() if case.form == "pandas" else frame.to_polars()
        return _select_columns(case, rows)
    matrix = context.dataset.matrix(
        "train", columns=columns, transformed=case.form == "transformed"
    )
    x = matrix.x
    if case.nulls == "fill":
        fills = [FILLS.get(name, 0) for name in matrix.names]
        x = np.where(np.isnan(x), np.array(fills, np.float32), x)
    return TrainingRows(matrix.names, x)


def _select_columns(case: Case, frame: Any) -> TrainingRows:
    """Return the columns of a case from a DataFrame, without nulls if they are filled or masked."""
    columns: dict[str, Any] = {}
    for name in case.columns:
        column = frame[name]
        is_pandas = case.form == "pandas"
        if case.nulls == "mask" and name in FILLS:
            columns[name] = (
                column.fillna(0) if is_pandas else column.fill_null(False if name == "open" else 0)
            )
            columns[f"{name}_present"] = column.notna() if is_pandas else column.is_not_null()
        elif case.nulls == "fill" and name in FILLS:
            value = FILLS[name]
            columns[name] = column.fillna(value) if is_pandas else column.fill_null(value)
        else:
            columns[name] = column
    return TrainingRows(tuple(columns), type(frame)(columns))


def score(store: FeatureStore, model: Model, case: Case) -> list[float]:
    """Return the predictions in batch for the shops of a case."""
    keys = [{"shop": shop} for shop in case.shops]
    later = datetime.now(UTC) + timedelta(hours=1)
    scored = store.score(model, labels=keys, label_time=later, trust=case.framework in TRUSTED)
    prediction_by_shop = {row["shop"]: row["prediction"] for row in scored.to_arrow().to_pylist()}
    return [prediction_by_shop[shop] for shop in case.shops]


def check_round_trip(shops: Shops, case: Case, fit: Fit) -> None:
    """Train, register, score in batch and predict online; compare all three with plain Python."""
    run, rows, fitted = shops.train(case, fit)
    trust = case.framework in TRUSTED
    options: dict[str, Any] = {"trust": trust}
    if case.form != "reader" and case.nulls in ("fill", "mask"):
        # A matrix has NaN: the training function fills it, so the registration repeats the values.
        options["nulls"] = case.fills if case.nulls == "fill" else "mask"
    if case.form in ("pandas", "polars") and fitted.frame is None:
        # The model was trained on arrays of a DataFrame, of which the run records no columns.
        options |= {"columns": case.columns, "transformed": False}
    model = experiments.register_model(run, "sums", **options)
    keys = [{"shop": shop} for shop in case.shops]
    expected = [fitted.predict_row(row) for row in shops.input_rows(case, rows.names)]
    in_batch = score(shops.store, model, case)
    np.testing.assert_allclose(in_batch, expected, rtol=1e-5, atol=0.02, err_msg="batch")
    server = model.server(trust=trust)
    try:
        online = [row["prediction"] for row in server.predict(keys).rows]
    finally:
        server.close()
    np.testing.assert_array_equal(online, in_batch)


# -- the table ------------------------------------------------------------------------------------

FORMS = ["reader", "matrix", "transformed", "pandas"]
if importlib.util.find_spec("polars") is not None:
    FORMS.append("polars")
NULLS = ("none", "fill", "mask", "nan")
# The frameworks whose files are code, or have a parser that does not check them.
TRUSTED = ("sklearn", "xgboost_wrapper", "lightgbm_wrapper", "jax", "spark")
# The cells that no framework can have, by form and nulls, with the error.
REFUSED: dict[tuple[str, str], tuple[type[FeatureStoreError], str]] = {
    ("reader", "nan"): (InvalidArgument, "nan"),
    # A matrix has no masks.
    ("matrix", "mask"): (InvalidArgument, "cannot use the inputs|states no masks"),
    ("transformed", "mask"): (InvalidArgument, "cannot use the inputs|states no masks"),
}


# All orders of all cells run in soak tests.
COMPLETE = pytest.mark.parametrize(
    "is_complete", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["turns", "complete"]
)


def cells(framework: str, *, is_complete: bool) -> Iterator[Case]:
    """Yield the cells of a framework: each form with each handling of nulls.

    The orders take turns unless the table is complete, so each occurs with each form and with each
    handling of nulls.
    """
    orders = list(ORDERS)
    for (row, form), (column, nulls) in itertools.product(enumerate(FORMS), enumerate(NULLS)):
        turn = (row + column) % len(orders)
        for order in orders if is_complete else orders[turn : turn + 1]:
            yield Case(framework, form, nulls, order)


def check_cells(shops: Shops, cases: Iterable[Case], fit: Fit, subtests: Any) -> None:
    """Check the cells of a framework."""
    for case in cases:
        with subtests.test(form=case.form, nulls=case.nulls, order=case.order):
            if (case.form, case.nulls) not in REFUSED:
                check_round_trip(shops, case, fit)
                continue
            error, words = REFUSED[case.form, case.nulls]
            with pytest.raises(error, match=words):
                check_round_trip(shops, case, fit)
