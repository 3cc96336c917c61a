"""The labels of a retrieval: a dataframe, another retrieval, or a group.

Untyped columns get the types of the columns they are joined with. Times in native dataframes of the
engine, which are not converted to Arrow, are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore import ingest
from featurestore.arrow.bounds import find_out_of_range, out_of_range_error, time_columns
from featurestore.arrow.casts import cast_batch
from featurestore.arrow.fitting import can_fit
from featurestore.arrow.frames import library_name
from featurestore.arrow.types import is_nested
from featurestore.arrow.untyped import adopt_types, untyped_columns
from featurestore.errors import ColumnConflict, OutOfRange
from featurestore.model.names import parse_group_reference
from featurestore.model.plan import ROW
from featurestore.model.requests import RetrievalRequest
from featurestore.model.times import FIRST, LAST
from featurestore.plugins.engine import Accumulator, Engine, Relation
from featurestore.retrieval.catalog import Pins
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.planner import LabelSide
from featurestore.retrieval.resolve import find_spec
from featurestore.session import Session
from featurestore.usersql import predicate

# Returns the types of the columns that the columns of a label schema are joined with.
TypesFor = Callable[[pa.Schema], Mapping[str, pa.DataType]]
_OUTSIDE = f"({{0}} < '{FIRST.isoformat()}' or {{0}} > '{LAST.isoformat()}')"
_OUTSIDE_DAYS = f"({{0}} < '{FIRST.date().isoformat()}' or {{0}} > '{LAST.date().isoformat()}')"
_PEEK_ROWS = 1000


def open_labels(
    session: Session, request: RetrievalRequest, *, pins: Pins, types: TypesFor
) -> LabelSide:
    """Open the labels of ``labels=`` without reading tables.

    Native dataframes of the engine are searched for times outside the years 1 to 9999. ``types``
    determines the types of untyped columns from the keys and times that they are joined with. Rows
    in memory keep their order and are converted to Arrow, so that the frame can be read repeatedly.
    """
    labels = request.labels
    if isinstance(labels, str):
        name, version = parse_group_reference(labels)
        version = version or (request.versions or {}).get(name)
        spec = find_spec(name, version=version, specs=pins.specs())
        source = pins.source((spec.name, spec.version))
        return LabelSide(
            source.spec.schema, source=source, time=source.spec.event_time, rows=source.rows
        )
    # A frame of another store is read by its own engine and converted to Arrow.
    if isinstance(labels, FeatureFrame) and labels.session.engine is session.engine:
        return _from_frame(labels, types)
    # Native dataframes are lazy and may exceed memory, so they are not converted to Arrow.
    adopted = ingest.adopt_native(labels, engine=session.engine)
    if adopted is not None:
        _check_names(adopted.schema)
        refuse_times_out_of_range(adopted, engine=session.engine)
        relation = typed_relation(session.engine, adopted, typed_schema(adopted.schema, types))

        def peek() -> pa.Table:
            stream = session.engine.stream(relation, batch_rows=_PEEK_ROWS, limit=_PEEK_ROWS)
            return stream.read_all()

        return LabelSide(relation.schema, peek=peek, relation=lambda: relation)
    table = ingest.to_reader(labels).read_all()
    return _from_memory(session, typed_table(table, types, labels))


def _from_frame(frame: FeatureFrame, types: TypesFor) -> LabelSide:
    """Open a frame as labels; a frame with a plan becomes the left plan."""
    plan = frame.plan
    if plan is None:
        schema, engine = typed_schema(frame.schema, types), frame.session.engine

        def relation() -> Relation:
            rows = ingest.refuse_encoded_arrays(frame.relation, frame, engine=engine)
            return typed_relation(engine, rows, schema)

        return LabelSide(schema, relation=relation, reads=frame.label_reads)
    return LabelSide(
        frame.schema,
        plan=plan,
        time=plan.time,
        ordered=plan.keep_order,
        rows=plan.rows,
        relation=frame.labels,
        reads=frame.label_reads,
    )


def _from_memory(session: Session, table: pa.Table) -> LabelSide:
    """Open an Arrow table as labels, numbered so that their order is preserved."""
    _check_names(table.schema)
    row_numbers = pa.array(np.arange(table.num_rows, dtype=np.int64))
    # Row numbers restore the order of the labels after a join.
    numbered = table.append_column(pa.field(ROW, pa.int64()), row_numbers)

    def relation() -> Relation:
        return session.engine.from_arrow(numbered.to_reader())

    return LabelSide(
        table.schema,
        ordered=True,
        rows=table.num_rows,
        peek=partial(table.slice, 0, _PEEK_ROWS),
        relation=relation,
    )


def _check_names(schema: pa.Schema) -> None:
    known_names: set[str] = set()
    for name in schema.names:
        # Engines compare column names without case, and ROW is added below.
        if name.lower() in known_names or name.lower() == ROW:
            raise ColumnConflict(
                f"The labels have two columns {name!r} (ignoring case).", hint="rename one"
            )
        known_names.add(name.lower())


def typed_schema(schema: pa.Schema, types: TypesFor) -> pa.Schema:
    """Assign the types of join partners to the untyped columns of a schema."""
    if not untyped_columns(schema):
        return schema
    return adopt_types(schema, types(schema))


def typed_relation(engine: Engine, relation: Relation, schema: pa.Schema) -> Relation:
    """Cast a relation to the schema that ``typed_schema`` returned."""
    if relation.schema == schema:
        return relation
    cast = partial(cast_batch, schema=schema)
    return engine.map_batches(relation, cast, schema=schema)


def typed_table(table: pa.Table, types: TypesFor, labels: object) -> pa.Table:
    """Cast the columns without values to the types of their join partners.

    ``table`` has the rows of ``labels``.
    """
    # pandas assigns a floating-point type to columns without values; an iterator may yield such
    # dataframes.
    may_be_pandas = library_name(labels) == "pandas" or isinstance(labels, Iterator)
    blank = [
        field.name
        for field in table.schema
        if may_be_pandas
        and pat.is_float64(field.type)
        and table.column(field.name).null_count == table.num_rows
    ]
    if not blank and not untyped_columns(table.schema):
        return table
    types_by_column = types(table.schema)
    for name in blank:
        # A column of floats that could be a key after a cast keeps its type, and the error names
        # it.
        if name in types_by_column and not can_fit(pa.float64(), types_by_column[name]):
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, pa.nulls(table.num_rows))
    schema = adopt_types(table.schema, types_by_column)
    batches = [cast_batch(batch, schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


@dataclass(frozen=True)
class OutOfRangeFinder(Accumulator["OutOfRange | None", "OutOfRange | None"]):
    """An accumulator that finds the first time outside the years 1 to 9999 and returns an error.

    ``columns`` are the column names; the batches have the names c0, c1 and so on.
    """

    columns: tuple[str, ...]

    def start(self) -> OutOfRange | None:
        return None

    def update(self, state: OutOfRange | None, batch: pa.RecordBatch) -> OutOfRange | None:
        if state is not None:
            return state
        for name, array in zip(self.columns, batch.columns, strict=True):
            row = find_out_of_range(array)
            if row is not None:
                return out_of_range_error(array, row, column=name, shown="A row")
        return None

    def merge(self, first: OutOfRange | None, second: OutOfRange | None) -> OutOfRange | None:
        return first or second

    def finish(self, state: OutOfRange | None) -> OutOfRange | None:
        return state


def refuse_times_out_of_range(relation: Relation, *, engine: Engine) -> None:
    """Refuse rows with a time outside the years 1 to 9999.

    The rows must be readable twice. The engine filters them, so that few rows are converted to
    Arrow. Times inside lists and structs are always converted.

    Raises:
        OutOfRange: A time is out of range; the message names the column and the time.
    """
    columns = time_columns(relation.schema)
    if not columns:
        return
    plain = {f"c{number}": name for number, name in enumerate(columns)}  # nothing to quote
    rows = engine.select(relation, plain)
    # A condition cannot check times inside lists, so nested columns are checked in Arrow.
    if not any(map(is_nested, rows.schema.types)):
        conditions = []
        for field in rows.schema:
            template = _OUTSIDE_DAYS if pa.types.is_date(field.type) else _OUTSIDE
            conditions.append(template.format(field.name))
        condition = " or ".join(conditions)
        rows = engine.filter(rows, predicate(condition, schema=rows.schema, dialect=engine.dialect))
    error = engine.aggregate(rows, OutOfRangeFinder(columns))
    if error is not None:
        raise error
