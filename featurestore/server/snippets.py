"""Code that pages offer: each snippet runs as it is, on the object of its page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import FeatureStoreError
from featurestore.experiments.models import Model
from featurestore.experiments.models.loading import SAFE_FLAVORS
from featurestore.featuregroups import FeatureGroup
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.plugins.format import find_format
from featurestore.readers.columns import select_columns, value_dtype_and_shape
from featurestore.server.examples import (
    LabelRow,
    feature_names,
    first_group,
    first_time,
    label_row,
    label_row_of_view,
)
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

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
