"""Feature vectors: the columns of an entity as a dict, a numpy array or an Arrow table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore import ingest
from featurestore.arrow.schemas import type_from_json
from featurestore.arrow.types import innermost_type
from featurestore.arrow.values import ConversionError, cast_column, round_to_float32, to_array
from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.times import to_python_rows
from featurestore.retrieval.conversions import to_numpy
from featurestore.serving.layout import ValueStatus
from featurestore.transform.apply import TransformBatch

if TYPE_CHECKING:
    from featurestore.model.manifest import Manifest
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations

FORMS = ("dict", "numpy", "arrow")
Form = Literal["dict", "numpy", "arrow"]
Status = Literal["found", "stale", "missing"]
# The most entities of a request to a server.
MAX_ENTITIES = 10_000
# Entities of a call: dicts by name, or a dataframe with an entity in each row.
Entities = Any
# The statuses of the reads of a vector; None: the value is current.
Statuses = Sequence[ValueStatus | None]


class FeatureVector(dict[str, Any]):
    """The columns of an entity by name, in the order of the view, with the status of its values.

    ``status`` is "found" if all groups have a value, "missing" if a group has none, otherwise
    "stale": the last row of a group is older than the group's ttl. The columns of stale and missing
    groups are None.
    """

    __slots__ = ("_groups", "_statuses")

    def __init__(self, values: Any, statuses: Statuses, groups: Sequence[tuple[str, int]]) -> None:
        super().__init__(values)
        self._statuses = statuses
        self._groups = groups

    @property
    def status(self) -> Status:
        """The worst status of all groups."""
        if ValueStatus.MISSING in self._statuses:
            return "missing"
        if ValueStatus.STALE in self._statuses:
            return "stale"
        return "found"

    @property
    def groups(self) -> dict[str, Status]:
        """The status of each feature group, such as ``{"planes@v1": "found"}``."""
        by_group: dict[str, Status] = {}
        for (name, version), status in zip(self._groups, self._statuses, strict=True):
            reference = f"{name}@v{version}"
            # A view may join a group twice; the worse status counts.
            if by_group.get(reference) in (None, "found") or status is ValueStatus.MISSING:
                by_group[reference] = "found" if status is None else status.value
        return by_group


def entity_rows(entities: Any) -> Sequence[Mapping[str, Any]]:
    """Return entities as rows by name; a dataframe has an entity in each row.

    Raises:
        InvalidArgument: The argument is a single entity.
        UnsupportedDataframe: The argument is neither a list nor a dataframe.
    """
    if isinstance(entities, list | tuple):
        return entities
    if isinstance(entities, Mapping):
        raise InvalidArgument(
            "get_vectors takes a list of entities or a dataframe, not a dict.",
            hint="get_vectors([{...}])",
        )
    if isinstance(entities, Iterator):
        return list(entities)
    return to_python_rows(ingest.to_reader(entities).read_all())


def check_entity(entity: Any, names: Sequence[str]) -> None:
    """Check that an entity has values by name."""
    if not hasattr(entity, "keys"):
        example = ", ".join(f"{name!r}: ..." for name in names)
        raise InvalidArgument(
            f"An entity is a dict with {listing(names)}, not {entity!r}.",
            hint=f"get_vector({{{example}}})",
        )


@dataclass(frozen=True)
class VectorForm:
    """The columns of vectors, and the transformation of their rows.

    ``transformations`` are those of a training dataset, and ``narrow`` the columns that its files
    store as float32. ``row_types`` has the columns whose values in the rows already have a type:
    those of entities and published values. Other values are converted like those of a write.
    """

    schema: pa.Schema
    transformations: Transformations | None = None
    narrow: tuple[str, ...] = ()
    row_types: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def is_raw(self) -> bool:
        """Whether the vectors contain the values of the store without changes."""
        return self.transformations is None and not self.narrow

    def to_batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Convert rows to a record batch of the transformed columns.

        Raises:
            InvalidArgument: A value has no equal in the type of its column.
        """
        arrays = [
            self._to_array(column, [row[column.name] for row in rows]) for column in self.schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self.transformations is None:
            return batch
        return TransformBatch(self.transformations)(batch)

    def _to_array(self, column: pa.Field, values: Sequence[Any]) -> pa.Array:
        """Convert the values of a column to its type."""
        row_type = self.row_types.get(column.name)
        try:
            if row_type is None:
                array = to_array(values, column.type)
            else:
                # Lossless and several times faster: the values are those that the type returns.
                array = pa.array(values, row_type)
                if row_type != column.type:
                    array = cast_column(array, column.type)
            if column.name in self.narrow:
                # As the files of the dataset, whose readers keep the type.
                array = cast_column(round_to_float32(array), column.type)
        except ConversionError as error:
            hint = "create a training dataset of the view, whose columns have the current types"
            if column.name in self.narrow:
                hint = 'create_training_dataset(..., data_format="parquet") stores doubles'
            raise InvalidArgument(
                f"The column {column.name!r} of a vector: {error}.", hint=hint
            ) from error
        return array

    def to_vectors(self, rows: Sequence[dict[str, Any]], form: Form) -> Any:
        """Convert rows to a list of dicts, a numpy array (rows, columns) or an Arrow table."""
        if form == "dict":
            return to_python_rows(self.to_batch(rows))
        return convert_batch(self.to_batch(rows), form)


def convert_batch(batch: pa.RecordBatch, form: Form) -> Any:
    """Convert a batch of vectors to a numpy array (rows, columns) or an Arrow table."""
    table = pa.Table.from_batches([batch])
    return to_numpy(table) if form == "numpy" else table


def raw_form(schema: pa.Schema, names: Sequence[str]) -> VectorForm:
    """Return the form of vectors with the values of the store."""
    return VectorForm(pa.schema([schema.field(name) for name in names]))


def dataset_form(dataset: TrainingDataset) -> VectorForm:
    """Return the form of the model inputs of a training dataset, in the order of the dataset."""
    columns = [column for column in dataset.manifest.columns if column.role == "feature"]
    schema = pa.schema([(column.name, type_from_json(column.type)) for column in columns])
    narrow = [
        column.name
        for column in columns
        if column.tf_type == "float32"
        and pat.is_float64(innermost_type(schema.field(column.name).type))
    ]
    fitted = dataset.transformations
    if fitted is not None:
        # The files of labels are transformed too, but a vector has no labels.
        fitted = fitted.portable(
            without=[column.name for column in fitted.columns if column.name not in schema.names]
        )
    return VectorForm(schema, fitted, tuple(narrow))


def check_dataset(manifest: Manifest, name: str, version: int) -> None:
    """Raise InvalidArgument unless a training dataset was created from a view version."""
    if manifest.view == {"name": name, "version": version}:
        return
    origin = "from no feature view"
    if manifest.view is not None:
        origin = f"from {manifest.view['name']!r} version {manifest.view['version']}"
    raise InvalidArgument(
        f"Training dataset {manifest.name!r} version {manifest.version} was created {origin}, not "
        f"from feature view {name!r} version {version}.",
        hint=f"dataset = view.create_training_dataset({manifest.name!r})",
    )


def check_form(form: object) -> None:
    """Raise InvalidArgument for an unknown ``as_=``."""
    if form not in FORMS:
        raise InvalidArgument(
            f"as_={form!r} is not one of {listing(FORMS)}.",
            hint=did_you_mean(form, FORMS, write="as_={!r}") or "as_='dict'",
        )
