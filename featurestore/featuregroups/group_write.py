"""One write into a feature group: intent, rows, audit, Delta commit and registration.

After an error before the Delta commit no rows are visible. An error after the Delta commit is
reported as a warning, and recovery registers the commit later.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.fitting import can_widen
from featurestore.delta import commits, iceberg
from featurestore.delta.log import cached_listing, latest_version
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import (
    DuplicateKeys,
    FeatureGroupExists,
    FeatureStoreError,
    ValidationFailed,
)
from featurestore.featuregroups import checks, quality, schema_change
from featurestore.featuregroups.conform import check_columns, convert_columns
from featurestore.featuregroups.definition import build_spec, convert_relation, metadata_of
from featurestore.featuregroups.existing import contains_rows
from featurestore.featuregroups.maintenance import compact_when_due
from featurestore.featuregroups.records import RecordOrder, resolve_records
from featurestore.featuregroups.table import OpenGroup, next_version, repeated_commit, version_title
from featurestore.featuregroups.writers import writer_properties
from featurestore.ingest import Rows, open_rows
from featurestore.model.featuregroup import Commit, FeatureGroupSpec
from featurestore.model.times import utc_now
from featurestore.model.validation import ValidationReport
from featurestore.plugins import observers
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.recovery import groups
from featurestore.recovery.in_flight import InFlight, in_flight
from featurestore.registry import artifacts, featuregroups
from featurestore.retrieval.conversions import existing_inputs
from featurestore.statistics import StatisticsState
from featurestore.storage.failures import warn_after_publication, warn_published
from featurestore.validation import Subject

if TYPE_CHECKING:
    from featurestore.featuregroups.write_request import WriteRequest
    from featurestore.session import Session

# The value of ``Commit.rows`` if the log cannot be read after the commit.
UNKNOWN = -1


class GroupWrite:
    """A write in progress, from the intent in the registry to the registered commit.

    Entering the context records the intent and opens the rows; leaving it removes staged files and
    resolves the intent. The steps are called in this order: ``define`` for a new group or
    ``convert`` for an existing one, ``audit``, ``create_table`` for a new group, ``commit``, and
    ``register``.
    """

    group: OpenGroup
    spec: FeatureGroupSpec
    _run: InFlight
    _rows: Rows
    _relation: Relation
    _stack: ExitStack

    def __init__(
        self,
        session: Session,
        df: object,
        request: WriteRequest,
        *,
        group: OpenGroup | None = None,
        version: int | None = None,
    ) -> None:
        """Prepare a write into ``group``, or into ``version`` of a new group; None: the next one."""
        self._session = session
        self._df = df
        self._request = request
        self._version = version
        self._is_new = group is None
        if group is not None:
            self.group, self.spec = group, group.spec
        self._operation = "create" if group is None else request.mode
        # The mode of the commit: records with duplicate keys may change it.
        self._mode = self._operation
        self._deletes = request.deletes
        self._added: list[pa.Field] = []
        # Whether the rows may contain unsupported values, so that reading may raise.
        self._is_unchecked = False
        self._report: ValidationReport | None = None
        self._quarantined: Relation | None = None
        # Whether the keys are unique and not null; None if unknown.
        self._is_unique: bool | None = None
        self._statistics: StatisticsState | None = None

    def __enter__(self) -> GroupWrite:
        """Record the intent of the write and open its rows."""
        like = None
        if not self._is_new:
            like = pa.schema([*self.spec.schema, *self._record_columns])
        with ExitStack() as stack:
            self._run = self._begin(stack)
            self._rows = stack.enter_context(
                open_rows(self._df, engine=self._session.engine, like=like)
            )
            request, rows = self._request, self._rows
            self._inputs = request.inputs or rows.inputs or existing_inputs(self._session, self._df)
            # The reads of registered sources, by the dataframe or by the job.
            self._reads = request.reads if rows.reads is None else rows.reads
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close the rows, remove staged files, and end or resolve the intent."""
        return self._stack.__exit__(error_type, error, traceback)

    def _begin(self, stack: ExitStack) -> InFlight:
        """Record the intent; it claims the version of a new group, by default the next free one."""
        name, run_id = self._request.name, self._request.run_id
        if not self._is_new:
            name, version = self.spec.name, self.spec.version
            return stack.enter_context(
                in_flight(
                    self._session, operation="write", name=name, version=version, run_id=run_id
                )
            )
        while True:
            version = self._version or next_version(self._session, name)
            creation = in_flight(
                self._session, operation="create", name=name, version=version, run_id=run_id
            )
            try:
                # Another process may claim the number first. Without a requested version, the next
                # number is used then.
                return stack.enter_context(creation)
            except FeatureGroupExists:
                if self._version is not None:
                    raise

    # -- conversion -------------------------------------------------------------------------------

    def define(self) -> FeatureGroupSpec:
        """Convert the rows to the declared types, and return the definition of the new group."""
        options, engine = self._request.options, self._session.engine
        name, batch_schema = self._request.name, self._rows.relation.schema
        relation = convert_relation(self._rows.relation, options.types, name=name, engine=engine)
        checks.check_time_types(relation, options.times, engine=engine)
        self.spec = build_spec(
            options, name=name, version=self._run.version, schema=relation.schema
        )
        self._relation = relation
        self._is_unchecked = relation.schema != batch_schema
        return self.spec

    def convert(self) -> None:
        """Convert the rows to the columns of the existing group, in its order and types.

        Raises:
            SchemaMismatch: Columns are missing or unknown, or have incompatible types; lists all.
        """
        relation, engine, request = self._rows.relation, self._session.engine, self._request
        checks.check_time_numbers(relation, self.spec, engine=engine)
        if request.schema_change == "add":
            relation, self.spec = schema_change.widen_spec_for_rows(
                relation, self.spec, engine=engine, run=self._run, is_staged=request.staged
            )
        record_columns = self._record_columns
        batch_schema = pa.schema(
            [field for field in relation.schema if field.name not in record_columns.names]
        )
        self._added = check_columns(batch_schema, self.spec, schema_change=request.schema_change)
        self.spec = self.spec.with_columns(self._added)
        schema = pa.schema([*self.spec.schema, *record_columns])
        # Conversions that can fail for single values are evaluated while the rows are read.
        types = [relation.schema.field(name).type for name in schema.names]
        self._is_unchecked = not all(map(can_widen, types, schema.types))
        self._relation = convert_columns(
            relation, schema, self.spec, engine=engine, may_widen=request.schema_change is None
        )

    @property
    def _record_columns(self) -> pa.Schema:
        """The columns of stream records, which do not become columns of the group."""
        order = self._request.order
        return pa.schema([]) if order is None else order.columns

    # -- audit ------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Stage and audit the rows if checks are required.

        Raises:
            ValidationFailed: The rows fail a check under the policy "strict".
            DuplicateKeys: The rows have duplicate keys and pass all other checks.
        """
        work = observers.current()
        if work is not None:
            work.plan = self._rows.plan
        try:
            if self._request.order is None:
                self._prepare_rows()
            else:
                self._prepare_records(self._request.order)
        except (ValidationFailed, DuplicateKeys) as error:
            if not self._is_new:
                quality.record_failed_validation(self._session, error)
            raise

    def _prepare_rows(self) -> None:
        """Stage, reduce and audit rows; only checks of all rows require staging."""
        request, spec, engine = self._request, self.spec, self._session.engine
        has_rules = bool(spec.primary_key or spec.event_time or spec.expectations)
        is_audited = has_rules and (request.validation or spec.validation) != "off"
        is_upsert, is_reduced = self._operation == "upsert", request.on_duplicates == "last"
        rules = checks.ValueRules.for_group(
            spec, has_checked_values=request.has_checked_values or self._rows.is_checked
        )
        # All reads of a source are recorded once its rows are staged, which is before the commit.
        is_staged = is_audited or is_upsert or is_reduced or self._reads is not None
        if not is_staged and not self._is_unchecked:
            self._relation = checks.check_while_writing(self._relation, rules, engine=engine)
            return
        if is_reduced:
            # This must precede staging, because a cluster returns staged files in a different
            # order.
            self._relation = engine.last_per_key(self._relation, spec.upsert_key)
        # Rows that the caller has staged are staged again if they are converted or reduced, because
        # later steps read them repeatedly.
        if not request.staged or self._is_unchecked or is_reduced:
            has_statistics = self._operation in ("create", "append", "overwrite")
            self._relation, self._statistics = quality.stage_rows(
                engine,
                self._relation,
                spec,
                directory=self._run.rows,
                row_count=self._rows.count,
                has_statistics=has_statistics and spec.statistics,
            )
        checks.check_staged_rows(self._relation, rules, engine=engine)
        if is_audited:
            self._audit_staged_rows(spec)
        elif is_upsert:
            # A merge with duplicate keys has no defined result.
            checks.check_unique_keys(self._relation, spec, engine=engine)

    def _prepare_records(self, order: RecordOrder) -> None:
        """Audit stream records, and select those to commit.

        Rows that fail a check are quarantined before duplicate keys are resolved, so that the
        result does not depend on batch boundaries.
        """
        engine, spec, directory = self._session.engine, self.spec, self._run.rows
        # Each stage has its own folder, because an engine may empty the folder before it reads the
        # rows.
        self._relation = engine.stage(self._relation, os.path.join(directory, "given"))
        names = {name: name for name in spec.schema.names}
        rules = checks.ValueRules.for_group(spec, has_checked_values=False)
        checks.check_staged_rows(engine.select(self._relation, names), rules, engine=engine)
        if (self._request.validation or spec.validation) != "off":
            # The audit receives no key, because duplicate keys are resolved afterwards.
            schema = self._relation.schema
            self._audit_staged_rows(Subject(spec.name, spec.version, schema, (), spec.event_time))
        resolved = resolve_records(
            engine, self._relation, spec, self.group, order=order, directory=directory
        )
        self._relation, self._is_unique = resolved.rows, resolved.is_unique
        self._mode, self._deletes = resolved.mode or self._mode, resolved.deletes
        self._quarantined = resolved.add_to(self._quarantined, engine=engine)

    def _audit_staged_rows(self, subject: FeatureGroupSpec | Subject) -> None:
        """Audit staged rows, and separate the rows to commit from the rows to quarantine."""
        outcome = quality.audit_rows(
            self._session,
            self._relation,
            self.spec,
            subject=subject,
            validation=self._request.validation or self.spec.validation,
            mode=self._operation,
            directory=self._run.rows,
            run_id=self._run.run_id,
        )
        self._relation, self._report = outcome.good, outcome.report
        self._quarantined, self._is_unique = outcome.quarantined, outcome.unique
        if outcome.quarantined is not None:
            # Statistics of all staged rows are not usable if some rows are quarantined.
            self._statistics = None

    def has_rows_of(self, group: OpenGroup) -> bool:
        """Return whether a group contains exactly these rows, in any order."""
        if self._relation.single_use:
            self._relation = self._session.engine.stage(self._relation, self._run.rows)
        return contains_rows(
            self._session,
            group,
            self._relation,
            quarantined=self._quarantined,
            row_count=self._rows.count,
        )

    # -- commit -----------------------------------------------------------------------------------

    def create_table(self) -> None:
        """Create the empty table of a new group and open it."""
        spec = self.spec
        path = self._session.featuregroup_path(spec.name, spec.version)
        properties = commits.properties(spec, metadata_of(self._request.options))
        if spec.job is not None:
            with self._session.registry.reading() as connection:
                properties |= writer_properties(connection, spec.name)
        # Commit 0 contains the definition, but no rows. A crash before the first data commit leaves
        # a table that is not a group yet.
        self._session.engine.create_table(
            path,
            schema=spec.schema,
            partition_by=spec.partition_by,
            properties=properties,
            commit_metadata={"operation": "define", "run": self._run.run_id},
        )
        self.group = OpenGroup(spec, path, read_snapshot(path))

    def commit(self) -> None:
        """Commit the rows and the keys to delete in one Delta commit, after the quarantined rows."""
        request, spec = self._request, self.spec
        mode = "append" if self._is_new else self._mode
        if not self._is_new:
            # These changes are compatible with other writers and readers, so a crash before the
            # commit leaves only wider decimals and unused columns.
            schema_change.widen_table(self._session, self.group, spec)
            schema_change.declare_columns(self._session, self.group, self._added)
        transaction = request.transaction
        # Two tables are written with one transaction, or with the same stream offsets.
        if transaction is None and self._quarantined is not None and not request.offsets:
            transaction = f"write/{self._run.run_id}", 0
        table_write = TableWrite(
            mode=mode,  # type: ignore[arg-type]
            key=spec.upsert_key if mode == "upsert" else (),
            replace=None if self._is_new else request.replace,
            add_columns=pa.schema(self._added) if self._added else None,
            commit_metadata=self._commit_metadata(mode),
            transaction=transaction,
            offsets=request.offsets,
            deletes=self._deletes,
        )
        # The failing records of a replay are in the quarantine already.
        is_replay = request.order is not None and request.order.written_positions is not None
        if self._quarantined is not None and not is_replay:
            # Quarantined rows are committed first. A repeated write appends to neither table.
            quality.add_to_quarantine(self._session, self._quarantined, spec, table_write)
        if self._is_new:
            # If this process was considered dead, recovery may have removed the table and released
            # the version.
            self._run.check_intent()
        self._write_table(table_write)

    def _commit_metadata(self, mode: str) -> dict[str, Any]:
        """Return the metadata: operation, run, job, inputs, window, uniqueness, validation."""
        metadata: dict[str, Any] = {
            "operation": self._operation,
            "run": self._run.run_id,
            **checks.uniqueness_metadata(
                self._session.engine,
                self._relation,
                self.group,
                is_unique=self._is_unique,
                mode=mode,
            ),
        }
        if self.spec.job is not None:
            metadata["job"] = self.spec.job
        metadata |= self._request.metadata(self._inputs, self._reads)
        if self._report is not None:
            outcome = "passed" if self._report.success else "warned"
            metadata["validation"] = outcome if self._quarantined is None else "quarantined"
        return metadata

    def _write_table(self, table_write: TableWrite) -> None:
        """Write one commit; a repeated transaction commits nothing.

        After an error the log is checked: if the write was committed, only a warning is issued.
        """
        run, group = self._run, self.group
        try:
            run.committed_version = self._session.engine.write(
                group.path, self._relation, table_write
            )
        except BaseException as error:
            # An error may occur after the commit became visible. The version is determined even for
            # an interrupt, so that the error can state that the rows are committed.
            run.committed_version = commits.version_of_run(
                group.path, run.run_id, after=group.delta_version
            )
            if run.committed_version is None or not isinstance(error, Exception):
                raise
            warn_published(version_title(group.spec, run.committed_version), error)

    # -- registration -----------------------------------------------------------------------------

    def register(self) -> Commit:
        """Register the commit, store its statistics, and return it.

        No errors are raised, because the rows are already visible. ``applied`` is False if the
        transaction was committed before.
        """
        session, spec, path = self._session, self.spec, self.group.path
        delta_version = self._run.committed_version
        if delta_version is None:
            delta_version = latest_version(path)
            if not self._is_new:
                return repeated_commit(path, delta_version)
        title = version_title(spec, delta_version)
        # The following steps read the log several times; on an object store, a single listing
        # suffices.
        with cached_listing(path):
            try:
                commit = commits.commit_of(path, delta_version)
            except (FeatureStoreError, OSError, ValueError) as error:
                warn_published(title, error)
                run_id = self._run.run_id
                return Commit(delta_version, UNKNOWN, utc_now(), self._mode, run_id=run_id)
            with warn_after_publication(title):
                self._update_registry(commit)
                self._run.registered = True
            if spec.statistics:
                with warn_after_publication(title):
                    # The rows are registered already; missing statistics are computed on request.
                    quality.store_commit_statistics(
                        session,
                        self.group,
                        commit,
                        rows=self._relation,
                        spec=spec,
                        mode=self._mode,
                        state=self._statistics,
                    )
            if spec.iceberg:
                with warn_after_publication(title):
                    # Iceberg clients read the previous version until the next commit repairs this.
                    iceberg.publish(path)
        return commit

    def _update_registry(self, commit: Commit) -> None:
        """Register the Delta version, new columns, lineage and validation report of a commit."""
        spec, latest, changed_spec = self.spec, commit.delta_version, None
        if spec.schema != self.group.spec.schema:
            # Register the current columns of the table, since other writers may have changed
            # columns concurrently.
            state = read_snapshot(self.group.path)
            latest, changed_spec = state.version, commits.spec_of(state)
        with self._session.registry.transaction() as connection:
            if self._is_new:
                groups.add(
                    connection,
                    spec,
                    metadata_of(self._request.options),
                    table_id=self.group.state.table_id,
                    delta_version=commit.delta_version,
                    created=commit.timestamp,
                )
            else:
                featuregroups.advance(
                    connection, spec.name, spec.version, delta_version=latest, spec=changed_spec
                )
            groups.add_lineage(connection, spec, commit)
            if self._report is not None:
                report = replace(self._report, delta_version=commit.delta_version)
                artifacts.add_validation_report(connection, featuregroups.KIND, report.to_json())

    def maintain(self, commit: Commit) -> None:
        """Warn about a repeated append, and merge small files if the group has too many."""
        request = self._request
        is_idempotent = request.transaction is not None or bool(request.offsets)
        # No other write duplicates rows if it is repeated.
        if request.mode == "append" and not self.spec.primary_key and not is_idempotent:
            checks.warn_about_repeated_batch(self.group, commit.delta_version)
        compact_when_due(self._session, self.spec, self.group.path, run=self._run)
