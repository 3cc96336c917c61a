"""Methods for training datasets (export, find, delete) and for registered models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from featurestore.model.names import refuse_name_before_data
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from featurestore.experiments.models import Model
    from featurestore.model.requests import TimeSplit
    from featurestore.retrieval import FeatureFrame
    from featurestore.training import TrainingDataset
    from featurestore.transform import Chain, Transformations


class TrainingDatasetCalls(StoreBase):
    """Methods for training datasets."""

    def create_training_dataset(
        self,
        data: object,
        name: str,
        *,
        label: str | Sequence[str] | None = None,
        features: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        weight: str | None = None,
        data_format: str = "tfrecord",
        splits: Mapping[str, float] | TimeSplit | None = None,
        split_by: str | Sequence[str] | None = None,
        stratify: str | Sequence[str] | None = None,
        seed: int = 0,
        key: str | Sequence[str] | None = None,
        shards: int | None = None,
        rows_per_shard: int | None = None,
        block_rows: int | None = None,
        version: int | None = None,
        compression: str | None = None,
        max_lengths: Mapping[str, int] | None = None,
        description: str = "",
        tags: Mapping[str, str] | None = None,
        expectations: object = None,
        validation: str = "strict",
        statistics: bool = True,
        transformations: Mapping[str, Chain] | None = None,
        fit_on: str = "train",
        missing_labels: str = "error",
        progress: bool | Callable[[str, int, int], None] | None = None,
    ) -> TrainingDataset:
        """Export rows as an immutable, versioned training dataset with splits and equal shards.

        The model inputs are the features that were requested by name in all chained
        ``get_features`` calls, and the columns in ``features=``. All other columns of the labels
        are label, weight, key, time or unused. For a dataframe or a complete group, all columns
        except label, weight, key and timestamps are inputs, unless ``features=`` lists the inputs.
        The roles are printed once and available as ``dataset.roles``.

        Args:
            data: A FeatureFrame (its sources are pinned in the manifest) or any dataframe.
            name: Name of the training dataset.
            label: The label column or columns.
            features: Additional input columns.
            exclude: Columns that are not inputs; they remain in the files and can be read by name.
            weight: A numeric column with row weights; readers return it for the loss.
            data_format: "tfrecord", "petastorm", "parquet", "csv", "huggingface" (a folder for
                ``datasets.load_from_disk``), "webdataset", "lance" or the name of an entry point in
                ``featurestore.formats``.
            splits: Fractions that sum to 1, or a TimeSplit; None writes all rows to "train".
            split_by: Columns whose equal values stay in one split (such as all rows of a user).
            stratify: Columns whose values have the same proportion in every split, exact to one
                row.
            seed: The seed for the row order and for splitting by fractions.
            key: Columns that identify a row; None: the labels' key and time, or all columns.
            shards: Number of shards per split; None: shards of about 128 MiB.
            rows_per_shard: Number of rows per shard, instead of ``shards``.
            block_rows: Number of rows per block, the unit of shuffling in readers (default 1024).
            version: The version to create; None: the next one.
            compression: "GZIP" for tfrecord (disables random access).
            max_lengths: ``{column: n}``: the maximum number of items in a list or bytes in a
                string; otherwise nothing is written. Records in tfrecord files are then padded to
                the maximum, so that all have the same size, which is the fast layout.
            description: The purpose of the dataset.
            tags: Tags, which can be searched.
            expectations: Expectations for the rows, as for feature groups.
            validation: "strict", "warn", "quarantine" or "off".
            statistics: Whether to compute statistics of every split.
            transformations: ``{column: chain of featurestore.transform}``, fitted on one split and
                applied by readers; the files contain the untransformed values.
            fit_on: The split on which transformations are fitted.
            missing_labels: The policy for rows whose label is null: "error" refuses them with the
                line that removes them; "drop" omits them from the files; "weight_zero" stores them,
                and readers yield them with the weight 0. The number of rows is printed and is in
                ``dataset.manifest.missing_labels``.
            progress: True displays a progress bar, None does so on a terminal; a function is called
                with (phase, completed rows, total rows).

        Raises:
            UnsupportedType: The format does not support some columns, or inputs are timestamps; the
                message lists them.
            ValidationFailed: Rows violate the expectations; nothing was written.
            InvalidArgument: Rows have no label.

        >>> frame = store.get_features(["weather.temp", "planes.seats"], labels="questions")
        >>> splits = {"train": 0.5, "test": 0.5}
        >>> dataset = store.create_training_dataset(
        ...     frame, "delays", label="late", splits=splits, seed=1, progress=False
        ... )
        Training dataset 'delays' version 1
        inputs:   temp, seats
        label:    late
        key:      tailnum, origin
        time:     asked_at
        >>> (dataset.version, sum(dataset.num_rows(split) for split in dataset.splits))
        (1, 4)
        """
        from featurestore.model.requests import TrainingRequest
        from featurestore.storage.failures import warn_after_publication
        from featurestore.training.create import create
        from featurestore.training.export.manifest import describe_text_labels

        refuse_name_before_data(data, name, call="create_training_dataset")
        request = TrainingRequest(
            name=name,
            label=label,
            features=features,
            exclude=exclude,
            weight=weight,
            data_format=data_format,
            splits=splits,
            split_by=split_by,
            stratify=stratify,
            seed=seed,
            key=key,
            shards=shards,
            rows_per_shard=rows_per_shard,
            block_rows=block_rows,
            version=version,
            compression=compression,
            max_lengths=max_lengths,
            description=description,
            tags=tags,
            expectations=expectations,
            validation=validation,
            statistics=statistics,
            transformations=transformations,
            fit_on=fit_on,
            missing_labels=missing_labels,
        )
        dataset = create(self._session, data, request, progress=progress)
        dataset_label = f"Training dataset {name!r} version {dataset.version}"
        # The dataset is published, so a closed standard output must not raise an error.
        with warn_after_publication(dataset_label):
            sys.stdout.write(f"{dataset_label}\n{dataset.roles!r}\n")
            if dataset.manifest.missing_labels is not None:
                sys.stdout.write(f"{dataset.manifest.missing_labels}\n")
            text_labels = describe_text_labels(dataset.manifest, dataset.transformations)
            if text_labels is not None:
                sys.stdout.write(f"{text_labels}\n")
        return dataset

    def transform(
        self, frame: object, dataset: TrainingDataset | Transformations | str
    ) -> FeatureFrame:
        """Apply the transformations of a training dataset to rows lazily.

        The results are bitwise equal to those of dataset readers, on every engine. Columns without
        a transformation are unchanged. Label columns may be missing, but input columns may not.

        This is only available as a method: ``featurestore.transform`` is a module.

        Args:
            frame: A FeatureFrame or any dataframe.
            dataset: The dataset, its name (the latest version), or the result of ``dataset.fit``.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> fitted = dataset.fit({"seats": t.min_max()})
        >>> store.transform([{"seats": 100}, {"seats": 150}], fitted).to_arrow().to_pylist()
        [{'seats': 0.0}, {'seats': 0.5}]
        """
        from featurestore.training.scoring import transform_frame

        if isinstance(dataset, str):
            dataset = self.get_training_dataset(dataset)
        return transform_frame(self._session, frame, dataset)

    def get_training_dataset(self, name: str, *, version: int | None = None) -> TrainingDataset:
        """Return a training dataset, by default its latest version.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> (dataset.version, list(dataset.splits), dataset.num_rows("train"))
        (1, ['train'], 4)
        """
        from featurestore.training.catalog import get

        return get(self._session, name, version)

    def get_training_datasets(
        self, *, limit: int | None = None, offset: int = 0
    ) -> list[TrainingDataset]:
        """List all versions of all training datasets, ordered by name and version.

        Args:
            limit: The maximum number of results; None: all.
            offset: The number of results to skip.

        >>> [dataset.name for dataset in store.get_training_datasets()]
        ['late_flights']
        """
        from featurestore.training.catalog import list_datasets

        return list_datasets(self._session, limit=limit, offset=offset)

    def get_latest_training_dataset_version(self, name: str) -> int:
        """Return the latest version of a training dataset, 0 if the dataset does not exist.

        ``create_training_dataset`` uses the next version automatically.

        >>> store.get_latest_training_dataset_version("late_flights")
        1
        >>> store.get_latest_training_dataset_version("early_flights")
        0
        """
        from featurestore.training.catalog import last_version

        return last_version(self._session, name)

    def get_training_dataset_tf_record_schema(
        self, name: str, *, version: int | None = None
    ) -> dict[str, Any]:
        """Return ``{column: tf.io feature}`` for a training dataset, for ``tf.io.parse_example``.

        >>> sorted(store.get_training_dataset_tf_record_schema("late_flights"))
        ['asked_at', 'late', 'origin', 'seats', 'tailnum', 'temp']
        """
        return self.get_training_dataset(name, version=version).tf_feature_spec()

    def get_dataframe_tf_record_schema(self, df: object) -> dict[str, Any]:
        """Return ``{column: tf.io feature}`` for TFRecord files with the rows of a dataframe.

        The rows are read once to determine nulls and lengths; nothing is written.

        >>> sorted(store.get_dataframe_tf_record_schema([{"x": 1.0, "words": ["a", "b"]}]))
        ['words', 'x']
        """
        from featurestore.training.create import infer_record_schema

        return infer_record_schema(self._session, df)

    def add_training_dataset_tag(
        self, name: str, key: str, value: str, *, version: int | None = None
    ) -> None:
        """Set a tag on a training dataset; its rows and manifest do not change.

        >>> store.add_training_dataset_tag("late_flights", "owner", "ops")
        >>> store.get_training_dataset_tags("late_flights")
        {'owner': 'ops'}
        """
        from featurestore.training.catalog import add_tag

        add_tag(self._session, name, key, value, version=version)

    def get_training_dataset_tags(self, name: str, *, version: int | None = None) -> dict[str, str]:
        """Return the tags of a training dataset.

        >>> store.get_training_dataset_tags("late_flights")
        {}
        """
        from featurestore.training.catalog import get_tags

        return get_tags(self._session, name, version=version)

    def remove_training_dataset_tag(
        self, name: str, key: str, *, version: int | None = None
    ) -> None:
        """Remove a tag from a training dataset.

        >>> store.add_training_dataset_tag("late_flights", "owner", "ops")
        >>> store.remove_training_dataset_tag("late_flights", "owner")
        """
        from featurestore.training.catalog import remove_tag

        remove_tag(self._session, name, key, version=version)

    def update_training_dataset(
        self, name: str, *, version: int | None = None, description: str
    ) -> TrainingDataset:
        """Change the description of a training dataset; its rows and manifest do not change.

        >>> store.update_training_dataset("late_flights", description="January").description
        'January'
        """
        from featurestore.training.catalog import describe

        return describe(self._session, name, version=version, description=description)

    def delete_training_dataset(self, name: str, *, version: int, force: bool = False) -> None:
        """Delete a version of a training dataset and the snapshots it pinned.

        Args:
            name: Name of the training dataset.
            version: The version to delete.
            force: Delete the version even if registered models were trained on it.

        Raises:
            UsedByModel: Models were trained on the dataset; the message lists them.

        >>> store.delete_training_dataset("late_flights", version=1)
        >>> store.get_training_datasets()
        []
        """
        from featurestore.training.catalog import remove

        remove(self._session, name, version, force=force)


class ModelCalls(StoreBase):
    """Methods for registered models."""

    def score(
        self,
        model: Model | str,
        *,
        labels: object,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        featuregroup: str | None = None,
        key: str | Sequence[str] = (),
        trust: bool = False,
    ) -> FeatureFrame:
        """Predict with a model on features as of each label's time; return labels and predictions.

        The result has the columns of the labels, ``prediction`` (or ``prediction_<output>`` for
        several outputs) and ``model_version``, and ``label_time`` if it was a single time. Rows are
        computed lazily by the engine, again on each read.

        Args:
            model: A registered model, or its name for the latest version.
            labels: A dataframe, a FeatureFrame or the name of a group with the columns in
                ``model.label_columns``.
            label_time: The time column of the labels, or one time for all rows.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            featuregroup: Also write the predictions to this group, which is created if necessary; a
                prediction replaces an earlier one with the same key and time.
            key: The primary key of a new group; the default is the join key of the features.
            trust: Allow the model files to execute code, as in ``model.load``.

        Raises:
            ModelNotFound: The model does not exist.
            UntrustedModel: Loading the model executes code, and ``trust`` is False.
            FeatureNotFound: Inputs are neither in the labels nor in any group.
            NullsInColumns: Required features are missing.

        >>> store.score("late_flights", labels="questions")
        Traceback (most recent call last):
        featurestore.errors.ModelNotFound: Unknown model 'late_flights'. Available: none. ...
        """
        from featurestore.experiments.models import scoring
        from featurestore.experiments.record_api import get_model
        from featurestore.model.requests import RowsRequest

        if isinstance(model, str):
            model = get_model(model, store=self)  # type: ignore[arg-type]
        request = RowsRequest(labels=labels, label_time=label_time, as_of=as_of)
        scored = scoring.score(model, request, trust=trust)
        if featuregroup is not None:
            # The join keys of the features are the default primary key of a new group.
            features = scoring.get_model_features(model, request)
            keys = (key,) if isinstance(key, str) else tuple(key)
            scoring.write_predictions(model, scored, features, featuregroup, key=keys)
        return scored
