"""Registered models: files, inputs and lineage of each version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import FeatureStoreError, FormatTooNew, ModelDamaged
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import (
    JsonMapping,
    JsonObject,
    MalformedJson,
    check_format,
    seal,
    unseal,
)
from featurestore.model.names import check_name
from featurestore.model.paths import MODELS, is_relative_path
from featurestore.model.run_record import check_run_id

DESCRIBED_FILE = "described.json"
TRANSFORMATIONS_FILE = "transformations.json"
FORMAT = 2
_FORMAT_WITHOUT_NULL_FORMS = 1
# The columns that scoring adds to the label columns.
PREDICTION = "prediction"
MODEL_VERSION = "model_version"
LABEL_TIME = "label_time"

# fmt: off
Flavor = Literal[
    "keras", "tf_keras", "tensorflow", "torch", "jax", "xgboost", "lightgbm", "spark", "pickle", "joblib"
]
# fmt: on
KERAS_FLAVORS: tuple[Flavor, ...] = ("keras", "tf_keras")
BOOSTERS: tuple[Flavor, ...] = ("xgboost", "lightgbm")
PICKLE_FLAVORS: tuple[Flavor, ...] = ("pickle", "joblib")
# Models of these formats take one array or DataFrame, in the order of the columns that they state.
FITTED_FLAVORS = (*PICKLE_FLAVORS, *BOOSTERS)
Arrays = Literal["columns", "matrix", "pandas", "polars"]
DATAFRAMES: tuple[Arrays, ...] = ("pandas", "polars")
NullForm = Literal["error", "fill", "mask", "nan"]
Method = Literal["predict", "predict_proba", "decision_function"]
Stage = Literal["development", "staging", "production", "archived"]


@dataclass(frozen=True)
class ModelFile:
    """A model file: its path relative to the model directory, size, and SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ColumnDtype:
    """The dtype of a DataFrame column, by the name that pandas or polars gives it.

    Attributes:
        categories: The categories of the training in their order, as JSON values; None for other
            dtypes.
        items: The dtype of the categories in pandas.
        from_arrays: Whether the values are those of a reader or a matrix, not of ``dataset.read``:
            days for dates, bytes for texts, and a column for each element of a vector.
    """

    name: str
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    items: str | None = None
    from_arrays: bool = False

    @classmethod
    def from_json(cls, data: JsonObject) -> ColumnDtype:
        """Parse the output of ``vars``."""
        categories = None
        if data.get("categories") is not None:
            categories = tuple(data.array("categories"))
        return cls(
            data.text("name"),
            categories,
            data.flag("ordered"),
            data.optional_text("items"),
            data.flag("from_arrays"),
        )


@dataclass(frozen=True)
class ModelInput:
    """A model input, as a column of the training dataset.

    Attributes:
        type: The feature type as JSON.
        narrow: Whether files store the column as float32.
        nulls: What the model gets for a null. "error": it was trained without nulls, so they are
            refused. "fill": ``fill``. "mask": zero, and False in ``<name>_present``. "nan": NaN,
            in a DataFrame the missing value of the dtype.
        fill: The value that replaces nulls, as JSON.
        dtype: The dtype in a DataFrame; None for models that take arrays.
    """

    name: str
    type: Any
    narrow: bool = False
    nulls: NullForm = "error"
    fill: Any = None
    dtype: ColumnDtype | None = None

    @property
    def kind(self) -> pa.DataType:
        """The feature type."""
        return type_from_json(self.type)


@dataclass(frozen=True)
class ModelOutput:
    """A prediction column; ``type`` is the feature type as JSON."""

    name: str
    type: Any


@dataclass(frozen=True)
class ModelSpec:
    """The contents of ``model.json``, one model version.

    ``artifact`` is the file or folder that is loaded with ``flavor``. ``features`` is the retrieval
    of the training dataset, with groups pinned to versions; ``inputs`` are in the column order of
    matrices and DataFrames. ``arrays`` is the form in which the model takes them. ``dataset`` is the
    training dataset, ``run`` the run that trained the model. ``transformations`` is the hash of the
    transformations file in the same directory.
    """

    name: str
    version: int
    flavor: Flavor
    artifact: str
    files: tuple[ModelFile, ...]
    dataset: JsonMapping
    features: FeatureViewSpec
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    label: tuple[str, ...] = ()
    arrays: Arrays = "columns"
    method: Method = "predict"
    transformations: str | None = None
    experiment: str | None = None
    run: str | None = None
    created: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that labels must have: join keys, and inputs that no group has."""
        available: set[str] = set()
        needed: dict[str, None] = {}
        for step in self.features.steps:
            # A join key may be a feature of an earlier step.
            for column in _left_columns(step.join_key):
                if column not in available:
                    needed[column] = None
            available.update(feature.name for feature in step.features)
            available.update(feature.name for feature in step.on_demand)
        for model_input in self.inputs:
            if model_input.name not in available:
                needed[model_input.name] = None
        return tuple(needed)

    def to_bytes(self) -> bytes:
        """Return the contents of the model file."""
        data = {**asdict(self), "format": FORMAT, "features": self.features.to_json()}
        for name in ("files", "inputs", "outputs", "label"):
            data[name] = list(data[name])
        return seal(data)

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> ModelSpec:
        """Parse the output of ``to_bytes``.

        Raises:
            ModelDamaged: The contents differ from what was written.
            FormatTooNew: A newer release wrote the file.
        """
        try:
            return _parse_spec(JsonObject.from_value(unseal(content)))
        except FormatTooNew:
            raise
        # FeatureStoreError: names and run IDs in the file are checked like arguments.
        except (MalformedJson, FeatureStoreError) as error:
            raise ModelDamaged(
                f"The model {path!r} is damaged: {error}",
                hint="restore the file from a copy, or register the model again",
            ) from error


def model_lineage_name(name: str) -> str:
    """Return the name of a model in lineage: its folder, relative to the store location.

    >>> model_lineage_name("late_flights")
    'models/late_flights'
    """
    return f"{MODELS}/{name}"


def _left_columns(join_key: Any) -> list[str]:
    """Return the left columns of a stored ``join_key``, which has one object per group."""
    columns: list[str] = []
    for pairs in (join_key or {}).values():
        columns += pairs
    return columns


def _parse_spec(data: JsonObject) -> ModelSpec:
    """Parse the contents of the model file."""
    format_number = data.number("format", minimum=1)
    check_format(format_number, FORMAT, subject=f"The model {data.get('name')!r}")
    dataset = data.object("dataset")
    check_name(dataset.text("name"), noun="training dataset")
    dataset.number("version", minimum=1)
    dataset.text("manifest")
    run = data.optional_text("run")
    return ModelSpec(
        name=check_name(data.text("name"), noun="model"),
        version=data.number("version", minimum=1),
        flavor=_parse_choice(data, "flavor", Flavor),
        artifact=_parse_path(data, "artifact"),
        files=tuple(
            ModelFile(_parse_path(file, "path"), file.number("bytes"), file.text("sha256"))
            for file in data.objects("files")
        ),
        dataset=dataset.data,
        features=FeatureViewSpec.from_json(data.get("features")),
        inputs=tuple(
            _parse_input(model_input, format_number=format_number)
            for model_input in data.objects("inputs")
        ),
        outputs=tuple(
            ModelOutput(output.text("name"), _parse_type(output))
            for output in data.objects("outputs")
        ),
        label=data.texts("label"),
        arrays=_parse_choice(data, "arrays", Arrays),
        method=_parse_choice(data, "method", Method),
        transformations=data.optional_text("transformations"),
        experiment=data.optional_text("experiment"),
        run=None if run is None else check_run_id(run),
        created=data.text("created"),
        libraries=data.object("libraries").read_values(JsonObject.text),
    )


def _parse_choice(data: JsonObject, name: str, allowed: Any) -> Any:
    value = data.text(name)
    if value not in get_args(allowed):
        raise data.wrong_type_error(name, f"one of {', '.join(get_args(allowed))}")
    return value


def _parse_path(data: JsonObject, name: str) -> str:
    path = data.text(name)
    # A model may come from another store: its paths must not lead outside of its directory.
    if not is_relative_path(path):
        raise data.wrong_type_error(name, "a path below the model")
    return path


def _parse_type(data: JsonObject) -> Any:
    dtype = data.get("type")
    try:
        type_from_json(dtype)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise data.wrong_type_error("type", "a feature type") from error
    return dtype


def _parse_input(data: JsonObject, *, format_number: int) -> ModelInput:
    fill, dtype = data.get("fill"), None
    if format_number == _FORMAT_WITHOUT_NULL_FORMS:
        nulls: NullForm = "error" if fill is None else "fill"
        if data.flag("masked"):
            nulls = "mask"
    else:
        nulls = _parse_choice(data, "nulls", NullForm)
        if data.get("dtype") is not None:
            dtype = ColumnDtype.from_json(data.object("dtype"))
    return ModelInput(data.text("name"), _parse_type(data), data.flag("narrow"), nulls, fill, dtype)


@dataclass(frozen=True)
class ModelAnnotations:
    """Editable annotations of a model version."""

    stage: Stage = "development"
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object) -> ModelAnnotations:
        """Parse the output of ``vars``; raise MalformedJson if it is invalid."""
        data = JsonObject.from_value(value)
        tags = data.object("tags").read_values(JsonObject.text)
        return cls(_parse_choice(data, "stage", Stage), data.text("description"), tags)
