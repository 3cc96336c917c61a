"""FeatureFrame: a lazy table of features or rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore import progress
from featurestore.arrow.lists import as_list
from featurestore.arrow.types import describe
from featurestore.errors import FeatureNotFound, InvalidArgument, did_you_mean, listing
from featurestore.external import find_live_sources, keep_rows
from featurestore.model.arguments import suggest_arguments
from featurestore.model.json_object import JsonMapping
from featurestore.model.plan import FeaturePlan, RowSample
from featurestore.model.runtime import forked_process_error
from featurestore.model.source import SourceRead, SourceReads
from featurestore.model.suggestions import FRAME_MEMBERS
from featurestore.model.times import utc_now
from featurestore.plugins.engine import Relation
from featurestore.progress import show_progress
from featurestore.retrieval import checks, conversions
from featurestore.retrieval.conversions import (
    DataframeType,
    format_table,
    record_inputs,
    suggest_replacement,
    table_to_html,
)
from featurestore.retrieval.coverage import CoverageReport, coverage
from featurestore.retrieval.execution import Labels, run, sample_rows
from featurestore.session import Session
from featurestore.usersql import fix_clock, predicate

_HTML_ROWS = 10
_BATCH_ROWS = 65_536
# Members of a feature group that its rows do not have.
_GROUP_MEMBERS = (
    "created_time", "delta_version", "derived", "description", "descriptions", "event_time",
    "explain", "explain_window", "external", "history", "insert", "name", "path", "primary_key",
    "provenance", "quarantine", "read", "spec", "statistics", "tags", "version",
)  # fmt: skip


@show_progress
@suggest_arguments
class FeatureFrame:
    """A lazy table, whose rows are read by each call of a method that returns rows.

    A frame is immutable and may be used from several threads. ``select``, ``drop``, ``filter`` and
    ``sample`` return new frames over the same pinned versions. Reading twice returns the same rows,
    even if other processes write in the meantime.

    >>> store.get_featuregroup("planes")
    FeatureFrame[tailnum: string, seats: int64]

    Args:
        session: The connection whose engine reads the rows.
        relation: The rows, or a function that returns them (called again for each reading of a
            stream).
        schema: The columns; needed when ``relation`` is a function.
        plan: The feature plan that the rows come from, if they come from one.
    """

    def __init__(
        self,
        session: Session,
        relation: Relation | Callable[[], Relation],
        *,
        schema: pa.Schema | None = None,
        plan: FeaturePlan | None = None,
    ) -> None:
        self._session = session
        self._relation: Relation | None = None
        self._process = os.getpid()
        self._create_relation: Callable[[], Relation]
        self._schema: pa.Schema | None
        if isinstance(relation, Relation):
            self._relation = relation
            self._create_relation = _refuse_relation_of_parent
            self._schema = relation.schema
        else:
            self._create_relation = relation
            self._schema = schema
        self._plan = plan
        self._labels: Labels | None = None
        self._view: tuple[str, int] | None = None
        self._view_labels: tuple[str, ...] = ()
        self._reads: list[SourceRead] | None = None
        self._inputs: tuple[JsonMapping, ...] = ()

    @classmethod
    def planned(
        cls,
        session: Session,
        plan: FeaturePlan,
        *,
        labels: Labels | None = None,
        reads: list[SourceRead] | None = None,
    ) -> FeatureFrame:
        """Create the frame of a feature plan.

        ``labels`` returns the relation of the caller's labels, and appends the reads of registered
        sources to ``reads``.
        """
        frame = cls(
            session, lambda: run(session, plan, labels=labels), schema=plan.schema, plan=plan
        )
        frame._labels = labels
        frame._reads = reads
        return frame

    def _with_plan(self, plan: FeaturePlan) -> FeatureFrame:
        """Return a frame of another plan over the same labels."""
        frame = FeatureFrame.planned(self._session, plan, labels=self._labels, reads=self._reads)
        frame._view = self._view
        frame._view_labels = self._view_labels
        frame._inputs = self._inputs
        return frame

    def of_view(self, name: str, version: int, *, labels: Sequence[str]) -> FeatureFrame:
        """Return a copy that is marked as the rows of a feature view with these label columns."""
        if self._plan is None:
            raise InvalidArgument("Rows without a plan cannot belong to a feature view.")
        frame = self._with_plan(self._plan)
        frame._view = (name, version)
        frame._view_labels = tuple(labels)
        return frame

    # -- properties -----------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order.

        >>> store.get_featuregroup("weather").columns
        ['origin', 'measured_at', 'temp', 'wind']
        """
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """The feature types of the columns."""
        if self._schema is None:
            self._schema = self.relation.schema
        return self._schema

    @property
    def plan(self) -> FeaturePlan | None:
        """The feature plan of the rows; None for the stored rows of a group or dataset."""
        return self._plan

    @property
    def session(self) -> Session:
        """The connection that reads the rows."""
        return self._session

    @property
    def labels(self) -> Labels | None:
        """The function that returns the relation of the caller's labels, if the plan has labels."""
        return self._labels

    @property
    def view(self) -> tuple[str, int] | None:
        """The name and version of the feature view, if the rows belong to one."""
        return self._view

    @property
    def view_labels(self) -> tuple[str, ...]:
        """The label columns of the feature view, if the rows belong to one."""
        return self._view_labels

    @property
    def reads(self) -> Sequence[SourceRead] | None:
        """The last reads of registered sources, by labels and external feature groups.

        None for rows of the store.
        """
        live = [source.read for source in find_live_sources(self._plan)]
        if self._reads is None:
            return SourceReads(live) if live else None
        return SourceReads(self._reads, live)

    @property
    def inputs(self) -> tuple[JsonMapping, ...]:
        """The lineage inputs of the rows: groups, datasets, models."""
        sources = () if self._plan is None else self._plan.sources
        return (*self._inputs, *(source.to_json() for source in sources))

    def made_of(self, *inputs: JsonMapping) -> FeatureFrame:
        """Return a copy with additional lineage inputs, which are recorded when it is written."""
        frame = copy(self)
        frame._inputs = (*self._inputs, *inputs)
        return frame

    @property
    def label_reads(self) -> list[SourceRead] | None:
        """The last reads of registered sources for the labels."""
        return self._reads

    @property
    def relation(self) -> Relation:
        """The engine's lazy table."""
        self._record_read()
        # A forked child has another engine, in which it creates the relation again.
        if self._relation is not None and self._process == os.getpid():
            return self._relation
        relation = self._create_relation()
        # A relation over a stream can be read once only, so it is created for each reading.
        if not relation.single_use:
            self._relation, self._process = relation, os.getpid()
        return relation

    def _record_read(self) -> None:
        """Store that a job reads the frame, which may have been created before the job."""
        recorder = self._session.recorder
        if recorder is not None:
            recorder.record_inputs(self.inputs)

    def native(self) -> Any:
        """Return the native frame of the engine: a DuckDB relation or a Spark DataFrame."""
        # The native frame does not reference external rows; they are retained until the process
        # ends.
        keep_rows(self._plan)
        return self._session.engine.user_frame(self.relation)

    def __repr__(self) -> str:
        columns = [f"{field.name}: {describe(field.type)}" for field in self.schema]
        return f"FeatureFrame[{', '.join(columns)}]"

    def __getattr__(self, name: str) -> Any:
        # Libraries look up names such as ``__array__`` on every object.
        if name.startswith("_"):
            raise AttributeError(name)
        suggestion = suggest_replacement(name)
        hint = f"available: {', '.join(FRAME_MEMBERS)}"
        if suggestion is not None:
            hint = suggestion
        elif name in self.columns:
            hint = f"frame[{name!r}] selects the column"
        elif name in _GROUP_MEMBERS:
            hint = f"featurestore.featuregroup(name).{name}"
        raise AttributeError(f"A FeatureFrame has no attribute {name!r}.\nHint: {hint}")

    def __dir__(self) -> list[str]:
        return list(FRAME_MEMBERS)

    # -- selection ------------------------------------------------------------------------

    def select(self, *columns: str) -> FeatureFrame:
        """Return a frame with only these columns, in this order; other columns are not read.

        >>> store.get_featuregroup("weather").select("temp", "origin").columns
        ['temp', 'origin']

        Raises:
            FeatureNotFound: A column does not exist; the message lists the available ones.
        """
        names = self._column_names(columns)
        if not names or len(set(names)) != len(names):
            raise InvalidArgument(
                f"select({', '.join(map(repr, names))}) requires one or more distinct columns."
            )
        if self._plan is not None:
            return self._with_plan(self._plan.select(names))
        schema = pa.schema([self.schema.field(name) for name in names])
        renames = dict(zip(names, names, strict=True))
        return self._derived(
            lambda: self._session.engine.select(self.relation, renames), schema=schema
        )

    def __getitem__(self, columns: str | Sequence[str]) -> FeatureFrame:
        """Return a frame with one column or several: ``frame["x"]``, ``frame[["x", "y"]]``.

        >>> store.get_featuregroup("weather")["temp"].columns
        ['temp']
        """
        if isinstance(columns, str):
            return self.select(columns)
        names = as_list(columns)
        if names is not None and all(isinstance(name, str) for name in names):
            return self.select(*names)
        raise InvalidArgument(
            f"frame[{columns!r}] is not a column.",
            hint="frame['x'] selects a column, frame.filter('x > 1') filters rows, frame.head(5) "
            "returns the first rows",
        )

    # Without this, Python would iterate over frame[0], frame[1], ...; to_batches() reads rows.
    __iter__ = None

    def filter(self, sql: str) -> FeatureFrame:
        """Return a frame of the rows that satisfy a predicate, in DuckDB's SQL on any engine.

        >>> store.get_featuregroup("weather").filter("temp > 37 and origin = 'JFK'").count()
        1

        ``docs/how-to/conditions.md`` lists the allowed expressions; they mean the same on every
        engine. ``now()`` is evaluated once, by this call.
        """
        engine, now = self._session.engine, utc_now()
        clocked_sql = fix_clock(sql, now=now)
        condition = predicate(clocked_sql, schema=self.schema, dialect=engine.dialect)
        if self._plan is not None:
            # The clock is replaced in the stored filter, too, so that the plan returns the same
            # rows later.
            plan = self._plan.filter(clocked_sql)
            if clocked_sql != sql:
                note = (
                    f"the clock functions of the filter {sql!r} were evaluated at {now.isoformat()}"
                )
                plan = replace(plan, notes=(*plan.notes, note))
            return self._with_plan(plan)
        return self._derived(lambda: engine.filter(self.relation, condition), schema=self.schema)

    def drop(self, *columns: str) -> FeatureFrame:
        """Return a frame without these columns, which are not read.

        >>> store.get_featuregroup("weather").drop("wind", "temp").columns
        ['origin', 'measured_at']

        Raises:
            FeatureNotFound: A column does not exist; the message lists the available ones.
        """
        dropped_names = self._column_names(columns)
        remaining_names = [name for name in self.columns if name not in dropped_names]
        return self.select(*remaining_names)

    def sample(
        self, *, fraction: float, seed: int = 0, by: str | Sequence[str] | None = None
    ) -> FeatureFrame:
        """Return a frame with a fraction of the rows, which is the same on every engine.

        Rows are selected by a hash of the seed and the columns ``by``. Therefore rows with equal
        values stay together (``by="customer"`` keeps all rows of a customer or none), and later
        rows do not change the selection of earlier rows.

        >>> weather = store.get_featuregroup("weather")
        >>> weather.sample(fraction=0.5, by="origin").to_arrow().column("origin").to_pylist()
        ['LGA', 'LGA']

        Args:
            fraction: The share, above 0 and at most 1; the number of rows is near it, not exact.
            seed: Another seed is another sample.
            by: The columns to hash; None takes the keys and the time of the rows if the frame knows
                them, else all columns.

        Raises:
            InvalidArgument: The fraction is not above 0 and at most 1.
            FeatureNotFound: A column does not exist.
        """
        if isinstance(fraction, bool) or not 0 < fraction <= 1:
            raise InvalidArgument(
                f"fraction={fraction!r} is not greater than 0 and at most 1.",
                hint="fraction=0.1 selects about a tenth of the rows",
            )
        if by is None:
            names = self._sampling_columns()
        else:
            names = self._column_names([by])
        sample = RowSample(float(fraction), seed, tuple(names))
        if self._plan is not None:
            return self._with_plan(self._plan.sample(sample))
        engine = self._session.engine
        return self._derived(lambda: sample_rows(engine, self.relation, sample), schema=self.schema)

    def _derived(
        self, create_relation: Callable[[], Relation], *, schema: pa.Schema
    ) -> FeatureFrame:
        """Return a frame over another relation with the sources and inputs of this frame."""
        frame = FeatureFrame(self._session, create_relation, schema=schema)
        frame._reads = self._reads
        frame._inputs = self.inputs
        return frame

    def _sampling_columns(self) -> list[str]:
        if self._plan is None or not self._plan.keys:
            return self.columns
        names = list(self._plan.keys)
        if self._plan.time is not None:
            names.append(self._plan.time)
        return list(dict.fromkeys(names))

    def _column_names(self, columns: Iterable[str | Sequence[str]]) -> list[str]:
        """Flatten arguments that are column names or lists of names.

        Raises:
            FeatureNotFound: The frame does not have the column.
        """
        names: list[str] = []
        for column in columns:
            items = [column] if isinstance(column, str) else as_list(column)
            if items is None or not all(isinstance(item, str) for item in items):
                raise InvalidArgument(
                    f"{column!r:.80} is not a column name.", hint="frame.select('x', 'y')"
                )
            names += items
        missing_names = [name for name in names if name not in self.columns]
        if missing_names:
            raise FeatureNotFound(
                f"Unknown columns {listing(missing_names)}. "
                f"Available: {listing(self.columns, limit=50)}.",
                hint=did_you_mean(missing_names[0], self.columns, write="{!r}"),
            )
        return names

    # -- inspection -----------------------------------------------------------------------

    def show(self, n: int = 20, truncate: bool | int = True, *, width: int = 20) -> None:
        """Write the first ``n`` rows to standard output, in the layout of Spark's ``show``.

        Cells are truncated to ``width``. ``truncate=False`` disables this; a number sets the width.

        >>> store.get_featuregroup("planes").show()
        +-------+-----+
        |tailnum|seats|
        +-------+-----+
        |    N10|  100|
        |    N20|  200|
        +-------+-----+
        """
        # One more row shows whether there are further rows.
        table = self._first_rows(n + 1)
        if truncate is False:
            width = sys.maxsize
        elif truncate is not True:
            width = truncate
        sys.stdout.write(
            format_table(table.slice(0, n), limit=n, width=width, more=table.num_rows > n)
        )

    def head(self, n: int = 5) -> pa.Table:
        """Return the first ``n`` rows as an Arrow table.

        >>> store.get_featuregroup("planes").head(1).to_pylist()
        [{'tailnum': 'N10', 'seats': 100}]
        """
        return self._first_rows(n)

    def count(self) -> int:
        """Return the number of rows, without a join if every label has exactly one row.

        >>> store.get_features("planes.seats", labels="questions").count()
        4
        """
        self._record_read()
        if (
            self._plan is not None
            and self._plan.how == "left"
            and not self._plan.drops_rows
            and self._plan.left_columns
        ):
            # A left join keeps the number of labels, so one label column suffices.
            narrow = self._plan.select(self._plan.left_columns[:1])
            return self._session.engine.count(run(self._session, narrow, labels=self._labels))
        return self._session.engine.count(self.relation)

    def __len__(self) -> int:
        """Return the number of rows if it is known without reading rows.

        >>> len(store.get_featuregroup("weather"))
        4

        Raises:
            InvalidArgument: The number is not known; ``count()`` counts the rows.
        """
        if self._plan is None or self._plan.rows is None:
            raise InvalidArgument(
                "The number of rows is unknown until the frame is read.", hint="frame.count()"
            )
        return self._plan.rows

    # Without this, an empty frame would be false, and a frame of unknown length would raise an
    # error.
    def __bool__(self) -> bool:
        return True

    @property
    def drops(self) -> bool:
        """Whether label rows without a row in every group are dropped (``join="inner"``)."""
        return self._plan is not None and checks.drops_label_rows(self._plan)

    def dropped(self, rows: int | None = None) -> int | None:
        """Return the number of label rows that ``join="inner"`` drops; None for other joins.

        >>> store.get_features("planes.seats", labels="questions", join="inner").dropped()
        0

        Rows that ``filter`` excludes are not counted. Pass the frame's row count as ``rows`` if it
        is known: without filters this avoids a join.
        """
        if self._plan is None:
            return None
        self._record_read()
        return checks.count_dropped_rows(self._session, self._plan, labels=self._labels, rows=rows)

    def coverage(self, *, sample: int = 10_000, seed: int = 0) -> CoverageReport:
        """Return how many labels each group has values for, and why the others get null.

        The report counts, for each group, labels with a value and labels without one by reason: no
        such key, before the first row, not known yet, older than ttl, or null in the row. It also
        names the argument to change. Filters of the frame are ignored.

        >>> labels = [{"origin": "jfk", "at": hour(8)}, {"origin": "LGA", "at": hour(5)}]
        >>> frame = store.get_features(["weather.temp"], labels=labels)
        >>> print(frame.coverage())
        weather@v1: 0 of 2 labels have a value; 1 no such key, 1 before its first row
          no such key: 'jfk' in the labels is 'JFK' in the group; use the same spelling ...
          before its first row: these labels are from 2013-01-01 05:00:00 to 2013-01-01 ...

        Args:
            sample: The maximum number of labels to check; more labels are sampled.
            seed: The seed of the sample.

        Raises:
            InvalidArgument: The frame joins nothing.
        """
        return coverage(self._session, self._plan, labels=self._labels, sample=sample, seed=seed)

    def warn_of_nulls(self, rows: int, nulls: Mapping[str, int]) -> None:
        """Warn about groups without values in an export, based on its null counts."""
        if self._plan is not None:
            checks.warn_of_empty_groups_in_export(
                self._session, self._plan, labels=self._labels, rows=rows, nulls=nulls
            )

    def _repr_html_(self) -> str:
        table = self._first_rows(_HTML_ROWS + 1)
        rows = f"{table.num_rows} rows"
        if table.num_rows > _HTML_ROWS:
            rows = f"first {_HTML_ROWS} rows"
        return table_to_html(
            table.slice(0, _HTML_ROWS), caption=f"{rows} of {len(self.columns)} columns"
        )

    def _first_rows(self, n: int) -> pa.Table:
        if n < 0:
            raise InvalidArgument(
                f"n={n} is negative.", hint="pass the number of rows, for example n=5"
            )
        return self._session.engine.stream(self.relation, batch_rows=max(n, 1), limit=n).read_all()

    # -- reading --------------------------------------------------------------------------

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table.

        >>> store.get_featuregroup("planes").to_arrow().num_rows
        2
        """
        return self._stream().read_all()

    def to_batches(self, *, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows lazily as record batches of at most ``rows`` rows.

        >>> [batch.num_rows for batch in store.get_featuregroup("weather").to_batches(rows=3)]
        [3, 1]
        """
        if rows < 1:
            raise InvalidArgument(f"rows={rows} is not a batch size.", hint="rows=65536")
        for batch in self._stream(batch_rows=rows):
            # An engine may return larger batches than requested.
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame.

        >>> store.get_featuregroup("planes").to_pandas().shape
        (2, 2)
        """
        rows = conversions.to_pandas(self.to_arrow())
        return record_inputs(rows, self.inputs, self._session.location)

    def to_polars(self) -> Any:
        """Return all rows as a polars DataFrame.

        >>> store.get_featuregroup("planes").to_polars().shape
        (2, 2)
        """
        return conversions.to_polars(self.to_arrow())

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return all rows as one 2-D array (see ``retrieval.conversions.to_numpy``).

        >>> store.get_featuregroup("weather").select("temp", "wind").to_numpy().max(axis=0)
        array([39., 12.])
        """
        return conversions.to_numpy(self.to_arrow())

    def to_spark(self) -> Any:
        """Return a Spark DataFrame."""
        keep_rows(self._plan)
        return self._session.engine.to_spark(self.relation)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows through the Arrow PyCapsule interface, which Arrow libraries accept."""
        return self._stream().__arrow_c_stream__(requested_schema)

    def _stream(self, *, batch_rows: int = _BATCH_ROWS) -> pa.RecordBatchReader:
        reader = self._session.engine.stream(self.relation, batch_rows=batch_rows)
        if progress.is_running():
            progress.begin_phase("read rows")
            reader = pa.RecordBatchReader.from_batches(
                reader.schema, progress.count_items(reader, len)
            )
        reader = checks.log_dropped_rows(self._session, self._plan, reader, labels=self._labels)
        reader = checks.warn_of_empty_groups(self._session, self._plan, reader, labels=self._labels)
        if not find_live_sources(self._plan):
            return reader
        return pa.RecordBatchReader.from_batches(reader.schema, self._batches_of_live_frame(reader))

    def _batches_of_live_frame(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield batches from a generator that keeps the frame and its external rows alive."""
        yield from reader


def _refuse_relation_of_parent() -> Relation:
    """Raise the error of a frame over a relation of the process from which this one was forked."""
    raise forked_process_error("The rows of this frame")


def convert(frame: FeatureFrame, dataframe_type: DataframeType | None) -> Any:
    """Convert a frame to a dataframe type; None leaves it lazy.

    Raises:
        InvalidArgument: The type is unknown; the message lists the available types.
    """
    if dataframe_type is None:
        return frame
    converters = {
        "pandas": frame.to_pandas,
        "polars": frame.to_polars,
        "arrow": frame.to_arrow,
        "numpy": frame.to_numpy,
        "python": lambda: frame.to_arrow().to_pylist(),
        "spark": frame.to_spark,
    }
    if dataframe_type not in converters:
        raise InvalidArgument(
            f"dataframe_type={dataframe_type!r} is not one of {listing(converters)} or None.",
            hint='dataframe_type="pandas"',
        )
    return converters[dataframe_type]()
