"""DatasetMetadata: what the manifest of a training dataset states, without its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.model import display
from featurestore.model.arguments import suggest_arguments
from featurestore.model.manifest import Manifest, format_source
from featurestore.model.roles import DatasetRoles
from featurestore.plugins.format import find_format
from featurestore.progress import show_progress

if TYPE_CHECKING:
    import pyarrow as pa

    from featurestore.session import Session
    from featurestore.transform.fitted import Transformations


@show_progress
@suggest_arguments
@dataclass(frozen=True)
class DatasetMetadata:
    """A version of a training dataset, here or in a served store, by its manifest."""

    path: str
    """The directory of the version, with one folder for each split. Other programs open
    ``path_of("train")`` or ``url_of("train")``."""
    manifest: Manifest = field(repr=False)
    session: Session | None = field(default=None, repr=False, compare=False)

    @property
    def transformations(self) -> Transformations | None:
        """The transformations that the dataset was created with, if any."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version of the dataset."""
        return self.manifest.version

    @property
    def schema(self) -> pa.Schema:
        """The feature types of the columns.

        >>> store.get_training_dataset("late_flights").schema.field("seats").type
        DataType(int64)
        """
        # Imported here, like most parts of this class, so that a worker opens a dataset without
        # loading them.
        from featurestore.training.reading import dataset_schema

        return dataset_schema(self.manifest)

    @property
    def roles(self) -> DatasetRoles:
        """The role of each column: input, label, weight, key or time.

        >>> store.get_training_dataset("late_flights").roles
        inputs:   temp, seats
        label:    late
        key:      tailnum, origin
        time:     asked_at
        """
        return DatasetRoles({column.name: column.role for column in self.manifest.columns})

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order."""
        return tuple(split.name for split in self.manifest.splits)

    def num_rows(self, split: str) -> int:
        """Return the number of rows of a split.

        >>> store.get_training_dataset("late_flights").num_rows("train")
        4
        """
        return self.manifest.split(split).rows

    @property
    def label_proportions(self) -> dict[str, dict[str, dict[str, float]]]:
        """The proportion of each label value as ``{split: {label: {value: proportion}}}``.

        >>> store.get_training_dataset("late_flights").label_proportions
        {'train': {'late': {'false': 0.5, 'true': 0.5}}}
        """
        from featurestore.training.comparison import label_proportions

        return label_proportions(self.manifest)

    def _summary(self) -> dict[str, object]:
        rows = {split.name: split.rows for split in self.manifest.splits}
        return {
            "name": self.name,
            "version": self.version,
            "data_format": self.manifest.data_format,
            "rows": sum(rows.values()),
            "splits": rows,
            "reproducible": self.manifest.reproducible,
            "created": self.manifest.created,
            "description": self.manifest.description,
        }

    def _repr_html_(self) -> str:
        caption = f"Training dataset {self.name} v{self.version}"
        more = {"path": self.path, "sources": list(map(format_source, self.manifest.sources))}
        columns: list[dict[str, object]] = [
            {"name": column.name, "type": column.tf_type, "role": column.role}
            for column in self.manifest.columns
        ]
        return display.properties_table(
            {**self._summary(), **more}, caption=caption
        ) + display.records_table(columns)

    @property
    def class_weights(self) -> dict[Any, Any]:
        """The balanced class weights of the training split: rows / (classes * rows of the class).

        The weights are ``{class: weight}``, or ``{label: {class: weight}}`` for several labels.
        Classes are the values that ``reader`` yields: 0 and 1 for booleans, and codes from 0 for a
        label that a transformation encodes. Rows without a label are ignored.
        ``reader(..., class_weights="balanced")`` applies these weights.

        >>> store.get_training_dataset("late_flights").class_weights
        {0: 1.0, 1: 1.0}
        """
        from featurestore.training.reading import class_weights

        return class_weights(self.manifest, self.transformations)

    def tf_feature_spec(self) -> dict[str, Any]:
        """Return ``{column: tf.io feature}`` for ``tf.io.parse_example``.

        >>> sorted(store.get_training_dataset("late_flights").tf_feature_spec())
        ['asked_at', 'late', 'origin', 'seats', 'tailnum', 'temp']
        """
        return find_format(self.manifest.data_format).feature_spec(self.manifest)
