"""Registered models: files, inputs and lineage of each version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import FeatureStoreError, FormatTooNew, ModelDamaged
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.json_object import (
    JsonDict,
    JsonMapping,
    JsonObject,
    MalformedJson,
    seal,
    unseal,
)
from featurestore.model.names import check_name
from featurestore.model.paths import MODELS, is_relative_path
from featurestore.model.records import Checked, FeatureType, Record, Valid, Version, members
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


# A model may come from another store: its paths must not lead outside of its directory.
FilePath = Annotated[str, Valid(is_relative_path, "a path below the model")]
_DATASET = members(
    {
        "name": Annotated[str, Checked(partial(check_name, noun="training dataset"))],
        "version": Version,
        "manifest": str,
    }
)


@dataclass(frozen=True)
class ModelFile:
    """A model file: its path relative to the model directory, size, and SHA-256."""

    path: FilePath
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ColumnDtype(Record):
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
    type: FeatureType
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
    type: FeatureType


@dataclass(frozen=True)
class ModelSpec(Record, format=FORMAT, subject="The model {name!r}"):
    """The contents of ``model.json``, one model version.

    ``artifact`` is the file or folder that is loaded with ``flavor``. ``features`` is the retrieval
    of the training dataset, with groups pinned to versions; ``inputs`` are in the column order of
    matrices and DataFrames. ``arrays`` is the form in which the model takes them. ``dataset`` is the
    training dataset, ``run`` the run that trained the model. ``transformations`` is the hash of the
    transformations file in the same directory.
    """

    name: Annotated[str, Checked(partial(check_name, noun="model"))]
    version: Version
    flavor: Flavor
    artifact: FilePath
    files: tuple[ModelFile, ...]
    dataset: Annotated[JsonMapping, _DATASET]
    features: FeatureViewSpec
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    label: tuple[str, ...] = ()
    arrays: Arrays = "columns"
    method: Method = "predict"
    transformations: str | None = None
    experiment: str | None = None
    run: Annotated[str | None, Checked(check_run_id)] = None
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
        return seal(self.to_json())

    def to_json(self) -> JsonDict:
        """Convert to a JSON object with the format at its end, the inverse of ``from_json``."""
        data = super().to_json()
        stored_format = data.pop("format")
        return {**data, "format": stored_format}

    @classmethod
    def from_json(cls, data: object) -> ModelSpec:
        """Parse the output of ``to_json``, and objects of earlier releases."""
        model = JsonObject.from_value(data)
        if model.number("format", minimum=1) == _FORMAT_WITHOUT_NULL_FORMS:
            inputs = list(map(_add_null_form, model.objects("inputs")))
            return super().from_json({**model.data, "inputs": inputs})
        return super().from_json(model)

    @classmethod
    def from_bytes(cls, content: bytes, *, path: str) -> ModelSpec:
        """Parse the output of ``to_bytes``.

        Raises:
            ModelDamaged: The contents differ from what was written.
            FormatTooNew: A newer release wrote the file.
        """
        try:
            return cls.from_json(unseal(content))
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


def _add_null_form(data: JsonObject) -> JsonDict:
    """Return the JSON of an input of the first format with the fields of later ones."""
    nulls: NullForm = "error" if data.get("fill") is None else "fill"
    if data.flag("masked"):
        nulls = "mask"
    return {**data.data, "nulls": nulls, "dtype": None}


@dataclass(frozen=True)
class ModelAnnotations(Record):
    """Editable annotations of a model version."""

    stage: Stage = "development"
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
