"""Calls that export, find and delete training datasets, and that apply registered models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

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
    """The calls on training datasets."""

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
        progress: bool | Callable[[str, int, int], None] | None = None,
    ) -> TrainingDataset:
        """Export rows as an immutable, versioned training dataset: splits, equal shards, manifest.

        The inputs of a model are the features that were asked for by name, in all chained
        ``get_features`` together, and what ``features=`` names; all else that the labels brought is
        label, weight, key, time or not used. Of a dataframe (or a whole group) all columns are
        inputs but label, weight, key and timestamps, unless ``features=`` names some. The roles are
        printed once; ``dataset.roles`` has them.

        Args:
            data: A FeatureFrame (its sources are pinned in the manifest) or any dataframe.
            name: Name of the dataset.
            label: The label column or columns.
            features: Further inputs in addition to the features requested by name.
            exclude: Inputs to leave out; they stay in the files and can be read by name.
            weight: A column of numbers that weighs rows; readers give it to the loss.
            data_format: "tfrecord", "petastorm", "parquet", "csv" or any entry point of
                ``featurestore.formats``.
            splits: Fractions that sum to 1, or a TimeSplit; None puts all rows into "train".
            split_by: Columns whose rows stay in one split (all rows of a user).
            stratify: Columns whose values have the same share in every split, exact to one row.
            seed: Decides the order of rows and the split by fractions.
            key: Columns that identify a row; else the labels' key and time, else all columns.
            shards: Number of shards of each split; else about 128 MiB each.
            rows_per_shard: Rows of a shard, instead of ``shards``.
            block_rows: Rows of a block, the unit that readers shuffle; default 1024.
            version: The version to make; None takes the next one.
            compression: "GZIP" for tfrecord (gives up random access).
            max_lengths: ``{column: n}``: no list has more items, no text more bytes (else nothing
                is written). Records of tfrecord then keep room for the longest one and stay of one
                width, the fast layout.
            description: The purpose of the dataset.
            tags: Small texts to find it by.
            expectations: What the rows must fulfil, as for feature groups.
            validation: "strict", "warn", "quarantine" or "off".
            statistics: Whether to count statistics of every split.
            transformations: ``{column: chain of featurestore.transform}``, fitted on one split and
                applied by readers; the files hold the values as they are.
            fit_on: The split that they are fitted on.
            progress: True draws a bar, None does so on a terminal; a function gets (phase, rows
                done, rows in all).

        Raises:
            UnsupportedType: The format cannot hold some columns; all are listed.
            ValidationFailed: The rows broke their expectations; nothing was written.

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
        from featurestore.model.requests import TrainingDatasetRequest
        from featurestore.storage.failures import after_publication
        from featurestore.training.create import create

        request = TrainingDatasetRequest(
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
        )
        dataset = create(self._session, data, request, progress=progress)
        called = f"Training dataset {name!r} version {dataset.version}"
        with after_publication(called):
            sys.stdout.write(f"{called}\n{dataset.roles!r}\n")
        return dataset

    def transform(
        self, frame: object, dataset: TrainingDataset | Transformations | str
    ) -> FeatureFrame:
        """Return rows with the transformations of a training dataset applied, lazily.

        The numbers are those that readers give, bit for bit, on every engine. Columns without a
        transformation stay as they are; labels may be missing, inputs may not.

        It is a method alone: ``featurestore.transform`` is the module of the rules.

        Args:
            frame: A FeatureFrame or any dataframe.
            dataset: The dataset, its name (the latest version), or what ``dataset.fit`` returned.

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
        """Return a training dataset; ``version=None`` takes the latest.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> (dataset.version, list(dataset.splits), dataset.num_rows("train"))
        (1, ['train'], 4)
        """
        from featurestore.training.catalog import get

        return get(self._session, name, version)

    def get_training_datasets(
        self, *, limit: int | None = None, offset: int = 0
    ) -> list[TrainingDataset]:
        """Return every version of every training dataset, by name and version.

        Args:
            limit: At most so many; None: all.
            offset: How many to leave out before them.

        >>> [dataset.name for dataset in store.get_training_datasets()]
        ['late_flights']
        """
        from featurestore.training.catalog import list_datasets

        return list_datasets(self._session, limit=limit, offset=offset)

    def get_latest_training_dataset_version(self, name: str) -> int:
        """Return the highest version of a training dataset, 0 if none has this name.

        ``create_training_dataset`` takes the next version by itself.

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
        """Return ``{column: tf.io feature}`` of a training dataset, for ``tf.io.parse_example``.

        >>> sorted(store.get_training_dataset_tf_record_schema("late_flights"))
        ['asked_at', 'late', 'origin', 'seats', 'tailnum', 'temp']
        """
        return self.get_training_dataset(name, version=version).tf_feature_spec()

    def get_dataframe_tf_record_schema(self, df: object) -> dict[str, Any]:
        """Return ``{column: tf.io feature}`` for TFRecord files of a dataframe's rows.

        The rows are read once, for nulls and lengths; nothing is written.

        >>> sorted(store.get_dataframe_tf_record_schema([{"x": 1.0, "words": ["a", "b"]}]))
        ['words', 'x']
        """
        from featurestore.training.export.manifest import record_schema

        return record_schema(self._session, df)

    def add_training_dataset_tag(
        self, name: str, key: str, value: str, *, version: int | None = None
    ) -> None:
        """Set a tag of a training dataset; its rows and its manifest stay as they are.

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
        from featurestore.training.catalog import tags_of

        return tags_of(self._session, name, version=version)

    def remove_training_dataset_tag(
        self, name: str, key: str, *, version: int | None = None
    ) -> None:
        """Remove a tag of a training dataset.

        >>> store.add_training_dataset_tag("late_flights", "owner", "ops")
        >>> store.remove_training_dataset_tag("late_flights", "owner")
        """
        from featurestore.training.catalog import remove_tag

        remove_tag(self._session, name, key, version=version)

    def update_training_dataset(
        self, name: str, *, version: int | None = None, description: str
    ) -> TrainingDataset:
        """Change the description of a training dataset; its rows and manifest stay as they are.

        >>> store.update_training_dataset("late_flights", description="January").description
        'January'
        """
        from featurestore.training.catalog import describe

        return describe(self._session, name, version=version, description=description)

    def delete_training_dataset(self, name: str, *, version: int, force: bool = False) -> None:
        """Delete one version of a training dataset and what it pinned.

        Args:
            name: The dataset.
            version: The version.
            force: Also where registered models were trained on it.

        Raises:
            UsedByModel: Models were trained on it; they are listed.

        >>> store.delete_training_dataset("late_flights", version=1)
        >>> store.get_training_datasets()
        []
        """
        from featurestore.training.catalog import remove

        remove(self._session, name, version, force=force)


class ModelCalls(StoreBase):
    """The calls on registered models."""

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
        """Return labels with the predictions of a model, from features as of each label's time.

        The rows have the columns of the labels, ``prediction`` (``prediction_<output>`` of several
        outputs) and ``model_version``; of one ``label_time`` for all rows also ``label_time``. They
        are computed lazily by the engine, again at each reading.

        Args:
            model: A registered model, or its name: the latest version.
            labels: A dataframe, a FeatureFrame or the name of a group, with the columns of
                ``model.label_columns``.
            label_time: Their time column, or one time for all rows.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            featuregroup: Also write the predictions into this group, which is made where there is
                none: a prediction for the same key and time takes the place of the one before.
            key: The primary key of a new group; else what the features are joined on.
            trust: Allow the model's files to run code, as ``model.load``.

        Raises:
            ModelNotFound: The model does not exist.
            UntrustedModel: Loading it runs code, and ``trust`` is False.
            FeatureNotFound: The labels lack inputs that no group has.
            NullsInColumns: Features are missing that the model cannot do without.

        >>> store.score("late_flights", labels="questions")
        Traceback (most recent call last):
        featurestore.errors.ModelNotFound: Unknown model 'late_flights'. Available: none. ...
        """
        from featurestore.experiments.models import scoring
        from featurestore.experiments.record_api import get_model

        if isinstance(model, str):
            model = get_model(model, store=self)  # type: ignore[arg-type]
        scored = scoring.score(
            model, labels=labels, label_time=label_time, as_of=as_of, trust=trust
        )
        if featuregroup is not None:
            features = scoring.features_of(model, labels=labels, label_time=label_time, as_of=as_of)
            keys = (key,) if isinstance(key, str) else tuple(key)
            scoring.write_predictions(model, scored, features, featuregroup, key=keys)
        return scored
