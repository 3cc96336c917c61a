"""The labels of a retrieval: a dataframe, another retrieval, or a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from featurestore import ingest
from featurestore.errors import ColumnConflict
from featurestore.model.plan import ROW
from featurestore.model.references import parse_group_reference
from featurestore.model.source import SourceRead
from featurestore.plugins.engine import Relation
from featurestore.retrieval.catalog import Pins
from featurestore.retrieval.execution import Labels
from featurestore.retrieval.frame import FeatureFrame
from featurestore.retrieval.native_times import refuse_times_outside
from featurestore.retrieval.planner import LabelSide
from featurestore.retrieval.resolve import Specs, find_spec
from featurestore.retrieval.untyped_rows import (
    TypesFor,
    typed_relation,
    typed_schema,
    typed_table,
)
from featurestore.session import Session

_PEEK_ROWS = 1000


@dataclass(frozen=True)
class LabelInput:
    """Labels as the planner sees them, and their relation if the plan does not contain it."""

    labels: LabelSide
    relation: Labels | None
    reads: list[SourceRead] | None = None


def open_labels(
    session: Session,
    labels: object,
    *,
    pins: Pins,
    specs: Specs,
    versions: Mapping[str, int] | None,
    types: TypesFor,
) -> LabelInput:
    """Return the labels of ``labels=``, without reading tables.

    Rows of the engine's own dataframes are searched for times outside of the years 1 to 9999.
    Untyped columns get the type of the key or time that they are joined with, from ``types``.
    Rows in memory keep their order and become Arrow, so that the frame can be read repeatedly.
    """
    if isinstance(labels, str):
        name, version = parse_group_reference(labels)
        spec = find_spec(name, version=version or (versions or {}).get(name), specs=specs)
        source = pins.source((spec.name, spec.version))
        label_side = LabelSide(
            source.spec.schema, source=source, time=source.spec.event_time, rows=source.rows
        )
        return LabelInput(label_side, None)
    if isinstance(labels, FeatureFrame) and labels.session.engine is session.engine:
        return _from_frame(labels, types)
    adopted = ingest.adopt_native(labels, engine=session.engine)
    if adopted is not None:
        _check_names(adopted.schema)
        refuse_times_outside(adopted, engine=session.engine)
        relation = typed_relation(session.engine, adopted, typed_schema(adopted.schema, types))
        peek = partial(_first_rows, session, relation)
        label_side = LabelSide(relation.schema, peek=peek, library=ingest.with_language(labels)[1])
        return LabelInput(label_side, lambda: relation)
    labels, language = ingest.with_language(labels)
    table = ingest.to_reader(labels).read_all()
    return _from_memory(session, typed_table(table, types, language), library=language)


def _from_frame(frame: FeatureFrame, types: TypesFor) -> LabelInput:
    plan = frame.plan
    if plan is None:
        schema, engine = typed_schema(frame.schema, types), frame.session.engine

        def relation() -> Relation:
            rows = ingest.refuse_encoded_arrays(frame.relation, frame, engine=engine)
            return typed_relation(engine, rows, schema)

        return LabelInput(LabelSide(schema), relation, frame.label_reads)
    time = plan.time
    label_side = LabelSide(
        frame.schema, plan=plan, time=time, ordered=plan.keep_order, rows=plan.rows
    )
    return LabelInput(label_side, frame.labels, frame.label_reads)


def _first_rows(session: Session, relation: Relation) -> pa.Table:
    stream = session.engine.stream(relation, batch_rows=_PEEK_ROWS, limit=_PEEK_ROWS)
    return stream.read_all()


def _from_memory(session: Session, table: pa.Table, *, library: str) -> LabelInput:
    _check_names(table.schema)
    row_numbers = pa.array(np.arange(table.num_rows, dtype=np.int64))
    numbered = table.append_column(pa.field(ROW, pa.int64()), row_numbers)

    def relation() -> Relation:
        return session.engine.from_arrow(numbered.to_reader())

    label_side = LabelSide(
        table.schema,
        ordered=True,
        rows=table.num_rows,
        peek=partial(table.slice, 0, _PEEK_ROWS),
        library=library,
    )
    return LabelInput(label_side, relation)


def _check_names(schema: pa.Schema) -> None:
    known_names: set[str] = set()
    for name in schema.names:
        if name.lower() in known_names or name.lower() == ROW:
            raise ColumnConflict(
                f"The labels have two columns {name!r} (ignoring case).", hint="rename one"
            )
        known_names.add(name.lower())
