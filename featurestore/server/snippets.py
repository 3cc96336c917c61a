"""Code that pages offer: each snippet runs as it is, on the object of its page.

Examples are label rows with values from statistics.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import FeatureStoreError
from featurestore.experiments.models import Model
from featurestore.experiments.models.loading import SAFE_FLAVORS
from featurestore.featuregroups import FeatureGroup
from featurestore.featuregroups.quality import find_stored_statistics
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.statistics import ColumnStatistics
from featurestore.model.times import parse_moment, utc_now
from featurestore.plugins.format import find_format
from featurestore.readers.columns import select_columns, value_dtype_and_shape
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

_MAX_TEXT_LENGTH = 40
_MAX_CANDIDATES = 50
_LABEL_TIMES = ("label_time", "asked_at", "as_of_time", "t")


@dataclass(frozen=True)
class LabelRow:
    """The columns of one label row as Python code, and their values."""

    cells: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    imports: Sequence[str] = ()

    @property
    def assignment(self) -> str:
        """The statement that assigns the labels."""
        cells = ", ".join(f"{name!r}: {code}" for name, code in self.cells.items())
        return f"labels = [{{{cells}}}]"


def label_row(
    groups: Sequence[FeatureGroup],
    *,
    join_keys: Mapping[str, Mapping[str, str]] | None = None,
    label_time: str | None = None,
) -> LabelRow:
    """Return a label row with values of the groups, from their statistics where these exist.

    Args:
        groups: The groups that are joined.
        join_keys: For groups whose keys have other names in the labels: key by label column.
        label_time: Name of the time column; None chooses a name that no group has.
    """
    values: dict[str, Any] = {}
    imports: set[str] = set()
    times: list[datetime] = []
    for group in groups:
        statistics = _column_statistics(group)
        keys = (join_keys or {}).get(group.name) or {key: key for key in group.primary_key}
        for label_column, key in keys.items():
            value = _example(group.schema.field(key).type, statistics.get(key))
            values.setdefault(label_column, value)
        if group.event_time is not None and group.primary_key:
            times.append(_last_time(statistics.get(group.event_time)))
    if times:
        names = {name for group in groups for name in group.schema.names}
        name = label_time or next(name for name in _LABEL_TIMES if name not in names)
        values[name] = max(times)
    cells = {name: _literal(value, imports) for name, value in values.items()}
    return LabelRow(cells, values, sorted(imports))


def label_row_of_view(store: FeatureStore, spec: FeatureViewSpec) -> LabelRow:
    """Return a label row for the groups of a view."""
    join_keys: dict[str, Mapping[str, str]] = {}
    for step in spec.steps:
        if isinstance(step.join_key, Mapping):
            for group, keys in step.join_key.items():
                if isinstance(keys, Mapping):
                    join_keys[group] = keys
    groups = [store.featuregroup(name, version=version) for name, version in spec.groups]
    return label_row(groups, join_keys=join_keys, label_time=spec.label_time)


def first_group(store: FeatureStore, *, with_event_time: bool = False) -> FeatureGroup | None:
    """Return the first group of the store that has features, and an event time if required."""
    for group in store.get_featuregroups(limit=_MAX_CANDIDATES):
        if feature_names(group) and (group.event_time is not None or not with_event_time):
            return store.featuregroup(group.name)
    return None


def feature_names(group: FeatureGroup) -> list[str]:
    """Return the columns of a group other than its keys and times."""
    times = {group.event_time, group.created_time}
    return [name for name in group.schema.names if name not in {*group.primary_key, *times}]


def _column_statistics(group: FeatureGroup) -> dict[str, ColumnStatistics]:
    statistics = find_stored_statistics(group._session, group.name, version=group.version)
    return {} if statistics is None else {column.name: column for column in statistics.columns}


def _example(dtype: pa.DataType, statistics: ColumnStatistics | None) -> Any:
    """Return a value of a key column: its minimum, or any value of its type."""
    minimum = None if statistics is None else statistics.minimum
    if pat.is_boolean(dtype):
        return True
    if pat.is_integer(dtype):
        return 1 if minimum is None else int(minimum)
    if pat.is_decimal(dtype):
        return Decimal(1)
    if pat.is_date(dtype):
        return date(2024, 1, 1) if minimum is None else date.fromisoformat(str(minimum)[:10])
    if pat.is_timestamp(dtype):
        return _last_time(statistics)
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return b"a"
    return str(minimum) if minimum and len(str(minimum)) <= _MAX_TEXT_LENGTH else "a"


def _literal(value: Any, imports: set[str]) -> str:
    """Return the code of a value, and add the imports that it needs."""
    if isinstance(value, datetime):
        imports.add("from datetime import datetime")
        return f"datetime.fromisoformat({value.astimezone(UTC).isoformat()!r})"
    if isinstance(value, date):
        imports.add("from datetime import date")
    elif isinstance(value, Decimal):
        imports.add("from decimal import Decimal")
    return repr(value).replace("datetime.date(", "date(")


def _last_time(statistics: ColumnStatistics | None) -> datetime:
    if statistics is None or statistics.maximum is None:
        return utc_now().replace(microsecond=0)
    return parse_moment(str(statistics.maximum), argument="maximum", warn=False)


def first_time(group: FeatureGroup) -> datetime:
    """Return the first event time of a group, or the current time if it is unknown."""
    statistics = _column_statistics(group).get(group.event_time or "")
    if statistics is None or statistics.minimum is None:
        return utc_now()
    return parse_moment(str(statistics.minimum), argument="minimum", warn=False)


_MAX_BATCH = 1024


@dataclass(frozen=True)
class Snippets:
    """Snippets for one visitor.

    Args:
        store: The objects that the visitor may see.
        address: The URL of a server with sign-in, to which programs connect with a token; None:
            programs open the store itself.
    """

    store: FeatureStore
    address: str | None = None

    def python(self, *lines: str, needs_files: bool = True, imports: Sequence[str] = ()) -> str:
        """Return a script that connects to the store and runs some lines.

        Args:
            lines: The lines after ``store = ...``.
            needs_files: Whether the calls need the directory of the store.
            imports: Import statements, sorted.
        """
        is_remote = self.address is not None and not needs_files
        target = self.address if is_remote else self.store.location
        connect = f"store = featurestore.connect({target!r})"
        if is_remote:
            connect = f"# $FEATURESTORE_TOKEN contains a token of {self.address}/account\n{connect}"
        elif self.address is not None:
            connect += "  # on a machine with this directory"
        return "\n".join([*imports, "import featurestore", "", connect, *lines])

    def command(self, *commands: str) -> str:
        """Return command lines for this store, each without the word featurestore."""
        prefix = f"featurestore --location {shlex.quote(self.store.location)}"
        return "\n".join(f"{prefix} {command}" for command in commands)

    def new_group(self) -> str:
        """Create a feature group."""
        line = "store.create_featuregroup(np.random.rand(20, 10), 'first_group')"
        return self.python(line, needs_files=False, imports=["import numpy as np"])

    def group(self, group: FeatureGroup) -> str:
        """Read a group, and its features as of a label time."""
        read = f"print(store.get_featuregroup({group.name!r}, version={group.version}).head())"
        return self._features([f"{group.name}@v{group.version}.*"], label_row([group]), read)

    def basket(self, references: Sequence[str], row: LabelRow) -> str:
        """Read features of several groups as of a label time."""
        return self._features(references, row)

    def _features(self, references: Sequence[str], row: LabelRow, *lines: str) -> str:
        features = "".join(f"    {reference!r},\n" for reference in references)
        code = [*lines, f"features = [\n{features}]"]
        if row.cells:
            code += [row.assignment, "frame = store.get_features(features, labels=labels)"]
        else:
            code.append("frame = store.get_features(features)")
        return self.python(*code, "print(frame.head())", needs_files=False, imports=row.imports)

    def view(self, spec: FeatureViewSpec) -> str:
        """Read the features of a view, for its own labels or for one row."""
        opening = f"view = store.get_feature_view({spec.name!r}, version={spec.version})"
        row = LabelRow() if spec.labels is not None else label_row_of_view(self.store, spec)
        if not row.cells:
            return self.python(opening, "print(view.get_features().head())")
        read = "print(view.get_features(labels=labels).head())"
        return self.python(opening, row.assignment, read, imports=row.imports)

    def dataset(self, dataset: TrainingDataset, split: str) -> str:
        """Read a batch of a split, or a record of shards that readers cannot read."""
        opening = self._open_dataset(dataset)
        arguments = reader_arguments(dataset, split)
        if arguments is not None:
            reader = f"reader = dataset.reader({', '.join([repr(split), *arguments])})"
            return self.python(opening, reader, "print(next(reader.batches()))", needs_files=False)
        compression = dataset.manifest.layout.get("compression")
        if compression is None or not dataset.manifest.split(split).rows:
            return self.python(opening, "print(dataset)", needs_files=False)
        return self.python(
            opening,
            f"paths = tf.io.gfile.glob(dataset.path_of({split!r}) + '/*')",
            f"records = tf.data.TFRecordDataset(paths, compression_type={compression!r})",
            "spec = dataset.tf_feature_spec()",
            "rows = records.map(lambda record: tf.io.parse_single_example(record, spec))",
            "print(next(iter(rows)))",
            needs_files=False,
            imports=["import tensorflow as tf"],
        )

    def petastorm(self, dataset: TrainingDataset, split: str) -> str:
        """Read the first batch of a split with petastorm."""
        reader = f"with dataset.petastorm_reader({split!r}, num_epochs=1) as reader:"
        return self.python(
            self._open_dataset(dataset), reader, "    print(next(reader))", needs_files=False
        )

    def _open_dataset(self, dataset: TrainingDataset) -> str:
        opening = (
            f"dataset = store.get_training_dataset({dataset.name!r}, version={dataset.version})"
        )
        if self.address is not None:
            # Readers need the files on the machine of the program.
            opening += f".download('{dataset.name}-v{dataset.version}')"
        return opening

    def model(self, model: Model) -> str:
        """Predict for the first training rows, or for one row."""
        opening = f"model = experiments.get_model({model.name!r}, version={model.version})"
        lines, imports = self._label_rows(model)
        score = "print(store.score(model, labels=labels).head())"
        if model.flavor not in SAFE_FLAVORS:
            # The files of the other flavors are programs.
            lines.append("# trust=True runs the code of the model: the author must be trusted")
            score = "print(store.score(model, labels=labels, trust=True).head())"
        imports = [*imports, "from featurestore import experiments"]
        return self.python(opening, *lines, score, imports=imports)

    def run(self, run_id: str) -> str:
        """Read the parameters and metrics of a run."""
        opening = f"run = experiments.get_run({run_id!r})"
        imports = ["from featurestore import experiments"]
        return self.python(opening, "print(run.params, run.metrics)", imports=imports)

    def _label_rows(self, model: Model) -> tuple[list[str], Sequence[str]]:
        """Return lines that assign labels with the columns that a model needs, and imports."""
        needed = dict.fromkeys(model.label_columns)
        columns = {column.name: column.role for column in model.dataset.manifest.columns}
        if columns and needed.keys() <= columns.keys():
            needed |= {name: None for name, role in columns.items() if role == "time"}
            split = model.dataset.splits[0]
            names = ", ".join(map(repr, needed))
            return [f"labels = model.dataset.read({split!r}).select({names}).head()"], ()
        row = label_row_of_view(self.store, model.spec.features)
        return [row.assignment], row.imports

    def group_without_statistics(self, group: FeatureGroup) -> str:
        """Compute the statistics of a group."""
        return self.python(
            f"print(store.update_featuregroup_statistics({group.name!r}, version={group.version}))"
        )

    def quarantine(self, group: FeatureGroup) -> str:
        """Read the quarantined rows of a group."""
        arguments = f"{group.name!r}, version={group.version}"
        return self.python(f"print(store.get_featuregroup_quarantine({arguments}).head())")

    def first_view(self) -> str:
        """Create a view of a group; empty if the store has no group."""
        group = first_group(self.store)
        if group is None:
            return ""
        reference = f"{group.name}@v{group.version}.{feature_names(group)[0]}"
        return self.python(f"store.create_feature_view('first_view', features=[{reference!r}])")

    def first_dataset(self) -> str:
        """Create a training dataset from the rows of a group; empty if the store has no group."""
        group = first_group(self.store)
        if group is None:
            return ""
        return self.python(
            f"frame = store.get_featuregroup({group.name!r}, version={group.version})",
            "store.create_training_dataset(frame, 'first_dataset')",
        )

    def first_run(self) -> str:
        """Launch an experiment."""
        return self.python(
            "",
            "def train(context):",
            "    for step in range(1, 4):",
            "        context.report(step, loss=1 / step)",
            "",
            "print(experiments.launch(train, name='first'))",
            imports=["from featurestore import experiments"],
        )

    def first_monitor(self) -> str:
        """Define a monitor in a file of jobs; empty if no group has an event time."""
        group = first_group(self.store, with_event_time=True)
        if group is None:
            return ""
        return "\n".join(
            [
                "import featurestore",
                "",
                "watch = featurestore.monitor_job(",
                f"    {_longer_name('watch', group)!r},",
                f"    featuregroup={group.name!r},",
                "    schedule='0 0 * * *',",
                "    window='1d',",
                f"    start={first_time(group).strftime('%Y-%m-%dT00:00Z')!r},",
                ")",
            ]
        )

    def first_job(self) -> str:
        """Define a job that counts rows per day; empty if no group has an event time."""
        group = first_group(self.store, with_event_time=True)
        if group is None:
            return ""
        name = _longer_name("daily", group)
        sql = f'select max("{group.event_time}") as day_end, count(*) as row_count from rows'
        return "\n".join(
            [
                "import featurestore",
                "",
                "daily = featurestore.sql_job(",
                f"    {name!r},",
                f"    sql={sql!r},",
                f"    inputs={{'rows': {group.name!r}}},",
                f"    featuregroup={name!r},",
                "    event_time='day_end',",
                "    schedule='0 0 * * *',",
                "    window='1d',",
                f"    start={first_time(group).strftime('%Y-%m-%dT00:00Z')!r},",
                ")",
            ]
        )


def reader_arguments(dataset: TrainingDataset, split: str) -> list[str] | None:
    """Return the arguments of a reader of a split as code; None if readers cannot read it."""
    manifest = dataset.manifest
    manifest_split = manifest.split(split)
    is_readable = find_format(manifest.data_format).refuse_reading(manifest.layout) is None
    if not is_readable or not manifest_split.rows:
        return None
    transform = dataset.transformations
    null_handling, padded = (
        ((), ()) if transform is None else (transform.null_handling, transform.padded)
    )
    regular = [
        column.name
        for column in manifest.columns
        if column.role in ("feature", "label", "weight")
        and (
            column.name in padded or -1 not in value_dtype_and_shape(type_from_json(column.type))[1]
        )
    ]
    batch_size = 1
    while 2 * batch_size <= min(manifest_split.rows, _MAX_BATCH):
        batch_size *= 2
    null_policies: tuple[Literal["error", "mask"], ...] = ("error", "mask")
    for columns, nulls in product((None, regular), null_policies):
        try:
            select_columns(
                manifest,
                manifest_split,
                columns=columns,
                nulls=nulls,
                null_handling=null_handling,
                padded=padded,
            )
        except FeatureStoreError:
            continue
        arguments = [f"global_batch_size={batch_size}"]
        if columns is not None:
            arguments.append(f"columns={columns!r}")
        if nulls != "error":
            arguments.append(f"nulls={nulls!r}")
        return arguments
    return None


def _longer_name(prefix: str, group: FeatureGroup) -> str:
    return f"{prefix}_{group.name}"[:63]
