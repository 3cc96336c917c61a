"""VectorServer: reads the feature vectors of a published view from an online store.

A request needs one read of the online store, or one more for each step of the view whose key is a
feature of an earlier step. The registry is read when the server is opened, after publications, and
each minute, which finds groups that were deleted and created again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.fitting import can_widen
from featurestore.errors import (
    InvalidSql,
    OnlineStoreError,
    PublishedValueMismatch,
    RegistryError,
    VersionNotFound,
)
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.model.runtime import ForkSafeLock
from featurestore.plugins.online import OnlineStore
from featurestore.registry.origins import VIEW
from featurestore.retrieval.catalog import pinned_source
from featurestore.serving import vector_plan
from featurestore.serving.layout import ValueLayout, ValueStatus
from featurestore.serving.ownership import check_published
from featurestore.serving.seals import find_damaged
from featurestore.serving.state import GroupState, PublishedView, ViewState
from featurestore.serving.stores import OnlineReads, StoreClock, open_online_store
from featurestore.serving.value_reads import DirectReads, ServedBatch, ValueReader
from featurestore.serving.vector_log import LogState, VectorLog
from featurestore.serving.vector_plan import Computation, EntityParser, GroupRead, VectorPlan
from featurestore.serving.vectors import (
    Entities,
    FeatureVector,
    Form,
    Statuses,
    VectorForm,
    check_dataset,
    check_entity,
    check_form,
    convert_batch,
    dataset_form,
    entity_rows,
    raw_form,
)
from featurestore.session import Session

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset

_log = logging.getLogger("featurestore.serving")
# The time between checks that the published tables are the registered ones.
_CHECK_SECONDS = 60.0
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
# A publication replaces all values at most a few times during one request.
_MAX_GENERATIONS = 5
_MISSING = ValueStatus.MISSING


@dataclass(frozen=True)
class ServedRows:
    """The values of some entities, and the statuses of their reads by the number of the read.

    ``now`` is the time of the online store, in microseconds, for which the values are current.
    """

    program: Program
    rows: list[dict[str, Any]]
    statuses: Sequence[Statuses]
    now: int


Result = TypeVar("Result")
# Yields the keys to read, receives their values, and returns a result.
Reads: TypeAlias = Generator[list[bytes], list[bytes | None], Result]


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


class VectorServer:
    """Reads the feature vectors of one view version from an online store; thread-safe.

    A vector has the columns of the view in their order, with the values that
    ``view.get_features(labels=[entity], label_time=now)`` returns, as of the last publication.

    >>> publication = store.publish("late_flights")
    >>> with store.get_feature_view("late_flights").server() as server:
    ...     vector = server.get_vector({"tailnum": "N10", "origin": "JFK"})
    >>> vector, vector.status
    ({'temp': 39.0, 'seats': 100}, 'found')
    """

    # Served stores log no vectors.
    _log: VectorLog | None = None

    def __init__(
        self,
        session: Session,
        spec: FeatureViewSpec,
        store: OnlineStore,
        form: VectorForm | None,
        *,
        log: VectorLog | None = None,
    ) -> None:
        self._session, self._spec, self._store, self._form = session, spec, store, form
        self._online_reads = OnlineReads(store)
        self._log = log
        self._view = PublishedView(spec.name, spec.version, store.config.name)
        self._state_key = self._view.key
        self._clock = StoreClock(self._online_reads)
        self._lock = ForkSafeLock()
        inputs: dict[str, pa.DataType] = {}
        if form is not None:
            inputs = dict(zip(form.schema.names, form.schema.types, strict=True))
        self._entity = vector_plan.entity_columns(session, spec, inputs)
        self._time_column = vector_plan.label_time_column(session, spec)
        self._untyped = [name for name, dtype in self._entity.types.items() if dtype is None]
        # By the types of request columns that nothing but their values determines.
        self._programs: dict[tuple[pa.DataType, ...], Program] = {}
        self._next_check = time.monotonic() + _CHECK_SECONDS
        (content,) = self._online_reads.read([self._state_key])
        # The first measurement would block the other threads of the server.
        self._clock.now()
        if self._untyped:
            check_published(session, ViewState.parse(content, self._view), self._view)
            columns = None if form is None else form.schema
        else:
            columns = self._update_program((), content).log_columns
        # Otherwise, the types of a log depend on the values of requests.
        if log is not None and columns is not None:
            log.open(columns)

    @property
    def entity(self) -> list[str]:
        """The columns that an entity must have: keys and request values.

        The label time is not required: it is the time of the request, unless an entity has it.

        >>> publication = store.publish("late_flights")
        >>> with store.get_feature_view("late_flights").server() as server:
        ...     server.entity
        ['origin', 'tailnum']
        """
        return [name for name in self._entity.types if name != self._time_column]

    @property
    def entity_types(self) -> dict[str, pa.DataType | None]:
        """The types of all columns that an entity may have; None: the type of the value."""
        return dict(self._entity.types)

    def parse_json(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entity whose values have the JSON forms of its columns.

        Times and dates are ISO 8601 strings, decimals strings or numbers, and bytes base64.

        >>> publication = store.publish("late_flights")
        >>> with store.get_feature_view("late_flights").server() as server:
        ...     server.parse_json({"tailnum": "N10", "origin": "JFK"})
        {'tailnum': 'N10', 'origin': 'JFK'}
        """
        return self._entity.parse_json(entity)

    @property
    def online(self) -> str:
        """The name of the online store."""
        return self._store.config.name

    @property
    def clock(self) -> StoreClock:
        """The clock of the online store, which decides which values are current."""
        return self._clock

    @property
    def log_state(self) -> LogState | None:
        """The vectors that are logged, waiting and missing; None without ``log_vectors=``.

        >>> publication = store.publish("late_flights")
        >>> view = store.get_feature_view("late_flights")
        >>> with view.server(log_vectors="served_flights", log_sample=1.0) as server:
        ...     vector = server.get_vector({"tailnum": "N10", "origin": "JFK"})
        >>> server.log_state.written, server.log_state.missing
        (1, 0)
        """
        return None if self._log is None else self._log.state

    def get_vector(self, entity: Mapping[str, Any], *, as_: Form = "dict") -> Any:
        """Return the vector of one entity.

        Args:
            entity: Its keys and request values by name; other names are ignored. Null keys match
                nothing.
            as_: "dict" (a FeatureVector, a dict with the attribute ``status``), "numpy" (a 1-D
                array) or "arrow" (a table with one row).

        Raises:
            InvalidArgument: The entity lacks a column, or a value has the wrong type.
            OnlineStoreError: The online store cannot be read.
            PublishedValueDamaged: A value differs from what was published for its key.
        """
        vectors = self.get_vectors((entity,), as_=as_)
        return vectors if as_ == "arrow" else vectors[0]

    def get_vectors(self, entities: Entities, *, as_: Form = "dict") -> Any:
        """Return the vectors of several entities, in their order, from one read.

        Returns a list of dicts, an array of shape (entities, columns) or an Arrow table; the
        arguments are those of ``get_vector``. ``entities`` is a list of dicts, or a dataframe with an
        entity in each row. An entity without values does not fail the others.
        """
        return self._drive(self._vectors(entities, as_))

    def read_batch(self, entities: Entities, *, at: int | None = None) -> ServedBatch:
        """Return the vectors of entities as a record batch, with their origin.

        ``at`` is the instant for which the values are read, in microseconds; None means now.
        """
        return self._drive(self._batch(entities, at))

    async def aget_vector(self, entity: Mapping[str, Any], *, as_: Form = "dict") -> Any:
        """Return the vector of one entity without blocking the event loop; see ``get_vector``."""
        vectors = await self.aget_vectors((entity,), as_=as_)
        return vectors if as_ == "arrow" else vectors[0]

    async def aget_vectors(self, entities: Entities, *, as_: Form = "dict") -> Any:
        """Return several vectors without blocking the event loop; see ``get_vectors``."""
        reads = self._vectors(entities, as_)
        try:
            keys = next(reads)
            while True:
                keys = reads.send(await self._online_reads.read_async(keys))
        except StopIteration as finished:
            return finished.value

    def close(self) -> None:
        """Close the connections to the online store, and write the logged vectors.

        May be called repeatedly.
        """
        self._store.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> VectorServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"VectorServer({self._spec.name!r}, version={self._spec.version}, "
            f"online={self.online!r})"
        )

    # -- reads ----------------------------------------------------------------------------

    def _drive(self, reads: Reads[Result]) -> Result:
        """Return the result of reads, whose keys are read one round trip after the other."""
        try:
            keys = next(reads)
            while True:
                keys = reads.send(self._online_reads.read(keys))
        except StopIteration as finished:
            result: Result = finished.value
            return result

    def _vectors(self, entities: Entities, form: Form) -> Reads[Any]:
        """Read the vectors of entities in a form."""
        entities = entity_rows(entities)
        direct = self._direct_keys(entities, form)
        if direct is not None:
            program, reads, keys = direct
            values = yield keys
            # Otherwise, the view was published again.
            if values[0] == program.state_content:
                self._check_values(keys, values)
                return self._direct_vectors(program, reads, values, form)
        return self._convert((yield from self._rows(entities, None)), form)

    def _batch(self, entities: Entities, at: int | None) -> Reads[ServedBatch]:
        """Read the vectors of entities as a record batch."""
        entities = entity_rows(entities)
        direct = self._direct_keys(entities, "arrow")
        if direct is not None:
            program, reads, keys = direct
            values = yield keys
            if values[0] == program.state_content:
                self._check_values(keys, values)
                now = self._clock.now_micros() if at is None else at
                batch, statuses = reads.batch(values, program.form.schema, now)
                return ServedBatch(batch, statuses, program.groups, program.delta_versions, now)
        served = yield from self._rows(entities, at)
        program = served.program
        batch = program.form.to_batch(served.rows)
        return ServedBatch(
            batch, served.statuses, program.groups, program.delta_versions, served.now
        )

    def _direct_keys(
        self, entities: Sequence[Mapping[str, Any]], form: Form
    ) -> tuple[Program, DirectReads, list[bytes]] | None:
        """Return the program of the fast path and the keys to read, or None if it does not apply."""
        # Every request calls this method first.
        self._session.record_read(VIEW, self._spec.name, self._spec.version)
        check_form(form)
        program = self._programs.get(())
        if program is None or program.direct is None or self._is_check_due():
            return None
        keys = program.direct.keys(entities)
        return None if keys is None else (program, program.direct, keys)

    def _direct_vectors(
        self, program: Program, reads: DirectReads, values: Sequence[bytes | None], form: Form
    ) -> Any:
        """Return the vectors of the fast path."""
        now = self._clock.now_micros()
        schema = program.form.schema
        if form == "dict":
            vectors = reads.vectors(values, program.groups, now)
            if self._log is not None:
                self._log.add(schema, vectors, now)
            return vectors
        batch, _ = reads.batch(values, schema, now)
        if self._log is not None:
            self._log.add_batch(batch, now)
        return convert_batch(batch, form)

    def _check_values(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Check the seals of values, which follow the state record.

        Raises:
            PublishedValueDamaged: A value differs from what was published for its key.
        """
        if find_damaged(keys[1:], values[1:]) is not None:
            raise self._view.damaged_value_error()

    def _rows(self, entities: Sequence[Mapping[str, Any]], at: int | None) -> Reads[ServedRows]:
        """Read the rows of entities, with one round trip for each stage of the program."""
        types = self._request_types(entities) if self._untyped else ()
        program = self._programs.get(types)
        if program is None or self._is_check_due():
            (content,) = yield [self._state_key]
            program = self._update_program(types, content)
        for _ in range(_MAX_GENERATIONS):
            rows, unmatched = program.parser.parse(entities, self._clock.now)
            statuses: list[list[ValueStatus | None]] = [
                [_MISSING] * len(program.groups) for _ in entities
            ]
            now = 0
            for computations, readers in program.stages:
                for computation in computations:
                    computation.add_to(rows, unmatched)
                if not readers:
                    continue
                keys, targets = self._keys(readers, rows, statuses)
                values = yield keys
                if values[0] != program.state_content:
                    published = program.published
                    program = self._update_program(types, values[0])
                    # Values of two generations must not be mixed.
                    if program.published != published:
                        break
                self._check_values(keys, values)
                # After the read: a row that became current in the meantime may be the only one.
                now = self._clock.now_micros() if at is None else at
                for (reader, row, row_statuses), value in zip(targets, values[1:], strict=True):
                    row_statuses[reader.number] = reader.set_values(row, value, now)
            else:
                return ServedRows(program, rows, statuses, now)
        raise OnlineStoreError(
            f"Feature view {self._spec.name!r} was published {_MAX_GENERATIONS} times during one "
            "request.",
            hint="publish it less often with full=True",
        )

    def _keys(
        self,
        readers: Sequence[ValueReader],
        rows: Sequence[dict[str, Any]],
        statuses: Sequence[list[ValueStatus | None]],
    ) -> tuple[list[bytes], list[tuple[ValueReader, dict[str, Any], list[ValueStatus | None]]]]:
        """Return the keys to read, after that of the state record, and where their values belong."""
        keys, targets = [self._state_key], []
        for row, row_statuses in zip(rows, statuses, strict=True):
            for reader in readers:
                key = reader.key(row)
                row.update(reader.nulls)
                if key is None:
                    continue
                keys.append(key)
                targets.append((reader, row, row_statuses))
        return keys, targets

    def _request_types(self, entities: Sequence[Mapping[str, Any]]) -> tuple[pa.DataType, ...]:
        """Return the types of the untyped request columns, inferred from the values."""
        types = []
        for name in self._untyped:
            for entity in entities:
                check_entity(entity, self.entity)
                if name not in entity:
                    raise vector_plan.missing_column_error(
                        name, entity, self.entity, view=self._spec.name
                    )
            types.append(vector_plan.infer_type([entity[name] for entity in entities], name=name))
        return tuple(types)

    def _convert(self, served: ServedRows, form: Form) -> Any:
        """Convert rows to vectors."""
        vector_form = served.program.form
        if self._log is not None:
            # Before the transformations, as the statistics of a training dataset.
            self._log.add(served.program.log_columns, served.rows, served.now)
        if form != "dict":
            return vector_form.to_vectors(served.rows, form)
        rows, names = served.rows, vector_form.schema.names
        if not vector_form.is_raw:
            rows = vector_form.to_vectors(rows, form)
        groups = served.program.groups
        return [
            FeatureVector(zip(names, map(row.__getitem__, names), strict=True), statuses, groups)
            for row, statuses in zip(rows, served.statuses, strict=True)
        ]

    # -- programs -------------------------------------------------------------------------

    def _update_program(self, types: tuple[pa.DataType, ...], content: bytes | None) -> Program:
        """Return the program for the published values that a state record describes.

        Raises:
            NotPublished: The view is not published.
            PublishedValueMismatch: The published columns or tables are not those of the view.
        """
        with self._lock:
            state = ViewState.parse(content, self._view)
            published = _identify_values(state)
            program = self._programs.get(types)
            try:
                check_published(self._session, state, self._view)
            except RegistryError as error:
                # Known values are served while the registry is unavailable.
                if program is None or program.published != published:
                    raise
                _log.warning("the published tables were not checked: %s", error.message)
            self._next_check = time.monotonic() + _CHECK_SECONDS
            assert content is not None
            if program is None or program.published != published:
                program = self._compile(types, state, content)
            else:
                # Only times or the lease changed.
                program = replace(
                    program, state_content=content, delta_versions=_delta_versions(state)
                )
            self._programs[types] = program
            return program

    def _is_check_due(self) -> bool:
        return time.monotonic() >= self._next_check

    def _compile(self, types: tuple[pa.DataType, ...], state: ViewState, content: bytes) -> Program:
        """Compile a vector plan for published values."""
        entity, plan = self._plan(types)
        stages = [
            (stage.computations, tuple([self._reader(read, state) for read in stage.reads]))
            for stage in plan.stages
        ]
        parser = EntityParser(
            entity, view=self._spec.name, time_column=self._time_column, columns=self._entity
        )
        form = self._form or raw_form(plan.schema, plan.features)
        form = replace(form, row_types=plan.typed_columns)
        log_columns = form.schema
        if self._log is not None and self._untyped and self._form is None:
            log_columns = self._untyped_log_columns(types) or form.schema
        groups = tuple([read.group for read in plan.reads])
        direct = None
        if self._form is None and len(stages) == 1 and not stages[0][0]:
            direct = DirectReads(self._state_key, stages[0][1], plan.features)
        return Program(
            parser=parser,
            stages=tuple(stages),
            groups=groups,
            form=form,
            log_columns=log_columns,
            state_content=content,
            published=_identify_values(state),
            direct=direct,
            delta_versions=_delta_versions(state),
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
                pa.field(name, kind or inferred[name]) for name, kind in self._entity.types.items()
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
                hint=f"store.publish({self._spec.name!r}, to={self._store.config.name!r})",
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


def open_server(
    session: Session,
    spec: FeatureViewSpec,
    *,
    online: str | None = None,
    dataset: TrainingDataset | None = None,
    log: VectorLog | None = None,
) -> VectorServer:
    """Return a server of a published view; see ``FeatureView.server``."""
    form = None
    if dataset is not None:
        check_dataset(dataset.manifest, spec.name, spec.version)
        form = dataset_form(dataset)
    store = open_online_store(session, online)
    try:
        return VectorServer(session, spec, store, form, log=log)
    except BaseException:
        store.close()
        raise


def _delta_versions(state: ViewState) -> dict[str, int]:
    """Return the published Delta version of each group."""
    return {
        format_group_reference(*group): published.delta_version
        for group, published in state.groups.items()
    }


def _identify_values(state: ViewState) -> object:
    """Return what the readers of published values depend on."""
    groups = {
        key: (group.table_id, group.columns, group.fingerprint)
        for key, group in state.groups.items()
    }
    return state.generation, groups
