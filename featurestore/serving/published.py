"""Reads of published values: the vectors of a view version in an online store.

A request needs one read of the online store, or one more for each step of the view whose key is a
feature of an earlier step. The registry is read when the values are opened, after publications, and
each minute, which finds groups that were deleted and created again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from featurestore.errors import OnlineStoreError, RegistryError
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.runtime import ForkSafeLock
from featurestore.plugins.online import OnlineStore
from featurestore.registry.origins import VIEW
from featurestore.serving.layout import ValueStatus
from featurestore.serving.ownership import check_published
from featurestore.serving.programs import (
    Program,
    ProgramCompiler,
    delta_versions_of,
    identify_values,
)
from featurestore.serving.seals import find_damaged
from featurestore.serving.state import PublishedView, ViewState
from featurestore.serving.stores import OnlineReads, StoreClock
from featurestore.serving.value_reads import DirectReads, ServedBatch, ValueReader
from featurestore.serving.vector_log import LogState, VectorLog
from featurestore.serving.vectors import (
    Entities,
    FeatureVector,
    Form,
    Statuses,
    VectorForm,
    check_form,
    convert_batch,
    entity_rows,
)
from featurestore.session import Session

_log = logging.getLogger("featurestore.serving")
# The time between checks that the published tables are the registered ones.
_CHECK_SECONDS = 60.0
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

    def to_vectors(self, form: Form, log: VectorLog | None) -> Any:
        """Return the vectors in a form, and log them."""
        program, rows, vector_form = self.program, self.rows, self.program.form
        if log is not None:
            # Before the transformations, as the statistics of a training dataset.
            log.add(program.log_columns, rows, self.now)
        if form != "dict":
            return vector_form.to_vectors(rows, form)
        names = vector_form.schema.names
        if not vector_form.is_raw:
            rows = vector_form.to_vectors(rows, form)
        return [
            FeatureVector(
                zip(names, map(row.__getitem__, names), strict=True), statuses, program.groups
            )
            for row, statuses in zip(rows, self.statuses, strict=True)
        ]

    def to_batch(self) -> ServedBatch:
        """Return the vectors as a record batch, with their origin."""
        program = self.program
        batch = program.form.to_batch(self.rows)
        return ServedBatch(batch, self.statuses, program.groups, program.delta_versions, self.now)


@dataclass(frozen=True)
class DirectValues:
    """The stored values of some entities, from which ``reads`` decodes vectors directly."""

    program: Program
    reads: DirectReads
    values: Sequence[bytes | None]
    now: int

    def to_vectors(self, form: Form, log: VectorLog | None) -> Any:
        """Return the vectors in a form, and log them."""
        schema = self.program.form.schema
        if form == "dict":
            vectors = self.reads.vectors(self.values, self.program.groups, self.now)
            if log is not None:
                log.add(schema, vectors, self.now)
            return vectors
        batch, _ = self.reads.batch(self.values, schema, self.now)
        if log is not None:
            log.add_batch(batch, self.now)
        return convert_batch(batch, form)

    def to_batch(self) -> ServedBatch:
        """Return the vectors as a record batch, with their origin."""
        program = self.program
        batch, statuses = self.reads.batch(self.values, program.form.schema, self.now)
        return ServedBatch(batch, statuses, program.groups, program.delta_versions, self.now)


Result = TypeVar("Result")
# Yields the keys to read, receives their values, and returns a result.
Reads: TypeAlias = Generator[list[bytes], list[bytes | None], Result]


class PublishedVectors:
    """The vectors of one view version in an online store; thread-safe."""

    def __init__(
        self,
        session: Session,
        spec: FeatureViewSpec,
        store: OnlineStore,
        form: VectorForm | None,
        *,
        log: VectorLog | None = None,
    ) -> None:
        self._session, self._spec, self._store, self._log = session, spec, store, log
        self._reads = OnlineReads(store)
        self._view = PublishedView(spec.name, spec.version, store.config.name)
        self._state_key = self._view.key
        self.clock = StoreClock(self._reads)
        self._lock = ForkSafeLock()
        self._compiler = ProgramCompiler(session, spec, self._view, form, is_logged=log is not None)
        # By the types of request columns that nothing but their values determines.
        self._programs: dict[tuple[pa.DataType, ...], Program] = {}
        self._next_check = time.monotonic() + _CHECK_SECONDS
        (content,) = self._reads.read([self._state_key])
        # The first measurement would block the other threads of the server.
        self.clock.now()
        if self._compiler.needs_request_types:
            check_published(session, ViewState.parse(content, self._view), self._view)
            columns = None if form is None else form.schema
        else:
            columns = self._update_program((), content).log_columns
        # Otherwise, the types of a log depend on the values of requests.
        if log is not None and columns is not None:
            log.open(columns)

    @property
    def entity(self) -> list[str]:
        """The columns that an entity must have."""
        return self._compiler.required_columns

    @property
    def entity_types(self) -> dict[str, pa.DataType | None]:
        """The types of all columns that an entity may have; None: the type of the value."""
        return dict(self._compiler.entity.types)

    @property
    def online(self) -> str:
        """The name of the online store."""
        return self._store.config.name

    @property
    def log_state(self) -> LogState | None:
        """The vectors that are logged, waiting and missing; None without a log."""
        return None if self._log is None else self._log.state

    def parse_json(self, entity: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entity whose values have the JSON forms of its columns."""
        return self._compiler.entity.parse_json(entity)

    def get_vectors(self, entities: Entities, form: Form) -> Any:
        """Return the vectors of entities, whose keys are read one round trip after the other."""
        return self._drive(self._read(entities, form)).to_vectors(form, self._log)

    async def aget_vectors(self, entities: Entities, form: Form) -> Any:
        """Return the vectors of entities without blocking the event loop."""
        reads = self._read(entities, form)
        try:
            keys = next(reads)
            while True:
                keys = reads.send(await self._reads.read_async(keys))
        except StopIteration as finished:
            return finished.value.to_vectors(form, self._log)

    def read_batch(self, entities: Entities, at: int | None = None) -> ServedBatch:
        """Return the vectors of entities as a record batch, with their origin.

        ``at`` is the instant for which the values are read, in microseconds; None means now.
        """
        return self._drive(self._read(entities, "arrow", at)).to_batch()

    def close(self) -> None:
        """Close the connections to the online store, and write the logged vectors."""
        self._store.close()
        if self._log is not None:
            self._log.close()

    def _drive(self, reads: Reads[Result]) -> Result:
        """Return the result of reads, whose keys are read one round trip after the other."""
        try:
            keys = next(reads)
            while True:
                keys = reads.send(self._reads.read(keys))
        except StopIteration as finished:
            result: Result = finished.value
            return result

    def _read(
        self, entities: Entities, form: Form, at: int | None = None
    ) -> Reads[DirectValues | ServedRows]:
        """Read the values of entities for vectors in a form."""
        rows = entity_rows(entities)
        direct = self._direct_keys(rows, form)
        if direct is not None:
            program, reads, keys = direct
            values = yield keys
            # Otherwise, the view was published again.
            if values[0] == program.state_content:
                self._check_values(keys, values)
                now = self.clock.now_micros() if at is None else at
                return DirectValues(program, reads, values, now)
        return (yield from self._rows(rows, at))

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

    def _check_values(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Check the seals of values, which follow the state record.

        Raises:
            PublishedValueDamaged: A value differs from what was published for its key.
        """
        if find_damaged(keys[1:], values[1:]) is not None:
            raise self._view.damaged_value_error()

    def _rows(self, entities: Sequence[Mapping[str, Any]], at: int | None) -> Reads[ServedRows]:
        """Read the rows of entities, with one round trip for each stage of the program."""
        types: tuple[pa.DataType, ...] = ()
        if self._compiler.needs_request_types:
            types = self._compiler.request_types(entities)
        program = self._programs.get(types)
        if program is None or self._is_check_due():
            (content,) = yield [self._state_key]
            program = self._update_program(types, content)
        for _ in range(_MAX_GENERATIONS):
            rows, unmatched = program.parser.parse(entities, self.clock.now)
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
                now = self.clock.now_micros() if at is None else at
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

    def _update_program(self, types: tuple[pa.DataType, ...], content: bytes | None) -> Program:
        """Return the program for the published values that a state record describes.

        Raises:
            NotPublished: The view is not published.
            PublishedValueMismatch: The published columns or tables are not those of the view.
        """
        with self._lock:
            state = ViewState.parse(content, self._view)
            published = identify_values(state)
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
                program = self._compiler.compile(types, state, content)
            else:
                # Only times or the lease changed.
                program = replace(
                    program, state_content=content, delta_versions=delta_versions_of(state)
                )
            self._programs[types] = program
            return program

    def _is_check_due(self) -> bool:
        return time.monotonic() >= self._next_check
