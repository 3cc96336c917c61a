"""Programs of a vector server: the compiled plan of a view for one generation of published values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.fitting import can_widen
from featurestore.errors import InvalidSql, PublishedValueMismatch, VersionNotFound
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.retrieval.catalog import pinned_source
from featurestore.serving import vector_plan
from featurestore.serving.layout import ValueLayout
from featurestore.serving.state import GroupState, PublishedView, ViewState
from featurestore.serving.value_reads import DirectReads, ValueReader
from featurestore.serving.vector_plan import Computation, EntityParser, GroupRead, VectorPlan
from featurestore.serving.vectors import VectorForm, check_entity, raw_form
from featurestore.session import Session

# The types that are tried for request values that are all null, and the most combinations.
_TYPES_OF_NULLS = (
    pa.null(),
    pa.float64(),
    pa.int64(),
    pa.string(),
    pa.bool_(),
    pa.timestamp("us", tz="UTC"),
    pa.date32(),
)
_MAX_CANDIDATES = 64


@dataclass(frozen=True)
class Program:
    """A vector plan with the readers of one generation of published values.

    ``published`` identifies the values that the readers expect; other fields of the state record
    change more often. ``log_columns`` are the columns of a log of the vectors.
    """

    parser: EntityParser
    stages: tuple[tuple[tuple[Computation, ...], tuple[ValueReader, ...]], ...]
    groups: tuple[tuple[str, int], ...]
    form: VectorForm
    log_columns: pa.Schema
    state_content: bytes
    published: object
    direct: DirectReads | None
    delta_versions: Mapping[str, int]


class ProgramCompiler:
    """Compiles the programs of a view version, for the types of request values.

    Args:
        session: The session of the store.
        spec: The view version.
        published: The view in the online store.
        form: The columns of vectors; None for the features of the view.
        is_logged: Whether vectors are logged.
    """

    def __init__(
        self,
        session: Session,
        spec: FeatureViewSpec,
        published: PublishedView,
        form: VectorForm | None,
        *,
        is_logged: bool,
    ) -> None:
        self._session, self._spec, self._view, self._form = session, spec, published, form
        self._is_logged = is_logged
        inputs: dict[str, pa.DataType] = {}
        if form is not None:
            inputs = dict(zip(form.schema.names, form.schema.types, strict=True))
        self.entity = vector_plan.entity_columns(session, spec, inputs)
        self._time_column = vector_plan.label_time_column(session, spec)
        self._untyped = [name for name, dtype in self.entity.types.items() if dtype is None]

    @property
    def needs_request_types(self) -> bool:
        """Whether only the values of requests determine the types of some columns."""
        return bool(self._untyped)

    @property
    def required_columns(self) -> list[str]:
        """The columns that an entity must have; a missing label time is the time of the request."""
        return [name for name in self.entity.types if name != self._time_column]

    def request_types(self, entities: Sequence[Mapping[str, Any]]) -> tuple[pa.DataType, ...]:
        """Return the types of the untyped request columns, inferred from the values."""
        types = []
        for name in self._untyped:
            for entity in entities:
                check_entity(entity, self.required_columns)
                if name not in entity:
                    raise vector_plan.missing_column_error(
                        name, entity, self.required_columns, view=self._spec.name
                    )
            types.append(vector_plan.infer_type([entity[name] for entity in entities], name=name))
        return tuple(types)

    def compile(self, types: tuple[pa.DataType, ...], state: ViewState, content: bytes) -> Program:
        """Compile a vector plan for published values."""
        entity, plan = self._plan(types)
        stages = [
            (stage.computations, tuple([self._reader(read, state) for read in stage.reads]))
            for stage in plan.stages
        ]
        parser = EntityParser(
            entity, view=self._spec.name, time_column=self._time_column, columns=self.entity
        )
        form = self._form or raw_form(plan.schema, plan.features)
        form = replace(form, row_types=plan.typed_columns)
        log_columns = form.schema
        if self._is_logged and self._untyped and self._form is None:
            log_columns = self._untyped_log_columns(types) or form.schema
        groups = tuple([read.group for read in plan.reads])
        direct = None
        if self._form is None and len(stages) == 1 and not stages[0][0]:
            direct = DirectReads(self._view.key, stages[0][1], plan.features)
        return Program(
            parser=parser,
            stages=tuple(stages),
            groups=groups,
            form=form,
            log_columns=log_columns,
            state_content=content,
            published=identify_values(state),
            direct=direct,
            delta_versions=delta_versions_of(state),
        )

    def _untyped_log_columns(self, types: tuple[pa.DataType, ...]) -> pa.Schema | None:
        """Return the columns of a log for request values of these types, with floats for integers.

        A client may send 2 and then 2.5, so the log must not depend on the first request. None if
        an on-demand feature does not accept floats.
        """
        general = tuple(
            [
                pa.float64() if pat.is_integer(dtype) or pat.is_null(dtype) else dtype
                for dtype in types
            ]
        )
        try:
            _, plan = self._plan(general)
        except InvalidSql:
            return None
        return raw_form(plan.schema, plan.features).schema

    def _plan(self, types: tuple[pa.DataType, ...]) -> tuple[pa.Schema, VectorPlan]:
        """Return the columns of entities and their plan, for the types of the untyped columns.

        Columns with nulls only get the first types that all on-demand features accept.

        Raises:
            InvalidSql: An on-demand feature does not support the types of its inputs.
        """
        choices = [_TYPES_OF_NULLS if pat.is_null(dtype) else (dtype,) for dtype in types]
        refusal: InvalidSql | None = None
        for candidate in itertools.islice(itertools.product(*choices), _MAX_CANDIDATES):
            inferred = dict(zip(self._untyped, candidate, strict=True))
            fields = [
                pa.field(name, kind or inferred[name]) for name, kind in self.entity.types.items()
            ]
            entity = pa.schema(fields)
            try:
                return entity, vector_plan.plan_vector(self._session, self._spec, entity)
            except InvalidSql as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    def _reader(self, read: GroupRead, state: ViewState) -> ValueReader:
        """Return the reader of a group's published values."""
        published = state.groups.get(read.group)
        columns: Iterable[str] = () if published is None else published.columns
        layout = ValueLayout.for_group(read.spec, columns)
        if published is not None and layout.fingerprint != published.fingerprint:
            layout = self._published_layout(read, published) or layout
        needed = {output.column for output in read.outputs}
        is_complete = needed <= set(layout.schema.names)
        if published is None or not is_complete or layout.fingerprint != published.fingerprint:
            name, version = read.group
            raise PublishedValueMismatch(
                f"The columns of feature group {name!r} version {version} changed after feature "
                f"view {self._spec.name!r} was published.",
                hint=f"store.publish({self._spec.name!r}, to={self._view.online!r})",
            )
        prefix = self._view.value_prefix(read.group, state.generation)
        return ValueReader(read, layout, prefix, self._view)

    def _published_layout(self, read: GroupRead, published: GroupState) -> ValueLayout | None:
        """Return the layout of published values if a write has only widened their types since.

        None if other columns were published, or the log no longer has the published version.
        """
        if read.spec.external is not None:
            return None
        path = self._session.featuregroup_path(*read.group)
        try:
            spec = pinned_source(path, delta_version=published.delta_version).spec
        except VersionNotFound:
            return None
        layout = ValueLayout.for_group(spec, published.columns)
        is_widened = all(
            field.name in read.spec.schema.names
            and can_widen(field.type, read.spec.schema.field(field.name).type)
            for field in layout.schema
        )
        if not is_widened or layout.fingerprint != published.fingerprint:
            return None
        # The ttl is that of the current definition.
        return replace(layout, ttl=read.spec.ttl)


def delta_versions_of(state: ViewState) -> dict[str, int]:
    """Return the published Delta version of each group."""
    return {
        format_group_reference(*group): published.delta_version
        for group, published in state.groups.items()
    }


def identify_values(state: ViewState) -> object:
    """Return what the readers of published values depend on."""
    groups = {
        key: (group.table_id, group.columns, group.fingerprint)
        for key, group in state.groups.items()
    }
    return state.generation, groups
