"""TrainingDataset: the handle of a finished dataset.

Workers can open a dataset by its path, without a connection to the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore import _current
from featurestore.errors import DatasetDamaged, InvalidArgument
from featurestore.model import display
from featurestore.model.arguments import suggest_arguments
from featurestore.model.suggestions import missing_member_error
from featurestore.plugins.format import find_format
from featurestore.progress import show_progress
from featurestore.storage import files, storage_for
from featurestore.storage.connections import use_options
from featurestore.storage.location import location_of, require_local
from featurestore.storage.manifests import read_annotations, read_manifest
from featurestore.storage.shards import DEFAULT_CACHE_BYTES, open_cache
from featurestore.training.metadata import DatasetMetadata
from featurestore.training.model_inputs import ModelInputs

if TYPE_CHECKING:
    from featurestore.readers import Reader
    from featurestore.readers.class_weights import ClassWeights
    from featurestore.retrieval import FeatureFrame
    from featurestore.session import Session
    from featurestore.statistics import Statistics
    from featurestore.training.comparison import DatasetDiff, DatasetDrift, DatasetStaleness
    from featurestore.training.reading import Matrix
    from featurestore.training.verification import VerifyReport
    from featurestore.transform.fitted import Transformations


@show_progress
@suggest_arguments
@dataclass(frozen=True)
class TrainingDataset(ModelInputs, DatasetMetadata):
    """One version of a training dataset: immutable files and their manifest.

    Attributes such as ``class_weights`` and ``roles`` come from the manifest; methods such as
    ``drift()`` and ``verify()`` read files or the store.

    >>> dataset = store.get_training_dataset("late_flights")
    >>> (dataset.name, dataset.version, dataset.splits)
    ('late_flights', 1, ('train',))
    """

    # The settings of each matrix and frame read from this dataset, which experiment runs record.
    matrices: list[dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    __repr__ = display.record_repr

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing_member_error(self, name, "dataset.read(split)")

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> TrainingDataset:
        """Open a dataset by its directory or URI, without a registry, DuckDB or Spark.

        Args:
            path: The directory of a version, such as "s3://bucket/store/trainingdatasets/late/v1".
            storage_options: Settings of the bucket; by default those of the environment.

        Raises:
            TrainingDatasetNotFound: The directory has no manifest of a finished dataset.

        >>> path = store.get_training_dataset("late_flights").path
        >>> TrainingDataset.open(path).num_rows("train")
        4
        """
        directory = location_of(path)
        # Set before the first read: the manifest itself is in the bucket.
        if storage_options is not None:
            use_options(directory, storage_options)
        _current.record_path_read(directory)
        return cls(directory, read_manifest(directory))

    def path_of(self, split: str) -> str:
        """Return the directory of a split, for Spark, globs and other readers.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> dataset.path_of("train") == dataset.path + "/train"
        True

        Raises:
            InvalidSplit: Lists the available splits.
        """
        return storage_for(self.path).resolve_inside(self.path, self.manifest.split(split).name)

    def url_of(self, split: str) -> str:
        """Return the directory of a split as a URL, which petastorm readers require.

        A split is a petastorm dataset. Petastorm readers refuse the parent directory.

        >>> store.get_training_dataset("late_flights").url_of("train")
        'file:///.../late_flights/v1/train'
        """
        path = self.path_of(split)
        return storage_for(path).as_uri(path)

    @property
    def description(self) -> str:
        """The description; ``update_training_dataset`` changes it."""
        return read_annotations(self.path, self.manifest).description

    @property
    def tags(self) -> dict[str, str]:
        """The tags; ``add_training_dataset_tag`` adds one."""
        return dict(read_annotations(self.path, self.manifest).tags)

    def matrix(
        self,
        split: str,
        *,
        columns: Sequence[str] | None = None,
        transformed: bool | Transformations | None = None,
    ) -> Matrix:
        """Return a split as arrays, for models that train on a complete table.

        ``x`` is a float32 array of shape (rows, inputs), ``y`` contains the label, and ``names``
        the input names. Rows are in canonical order, and nulls are NaN. Each element of a list, an
        image or a one-hot vector is a column. The values are those that readers yield, rounded to
        float32: integers are exact up to ``2**24``.

        Args:
            split: Name of the split.
            columns: The input columns; None means all columns that have the role input.
            transformed: None applies the transformations that the dataset was created with, if
                any; False returns the stored values; a result of ``fit`` applies these
                transformations.

        Raises:
            UnsupportedType: Inputs are strings or times; the message lists all of them.
            InvalidArgument: A finite number is infinity in float32.

        >>> x, y, names = store.get_training_dataset("late_flights").matrix("train")
        >>> names, x.dtype, x.shape, y.shape
        (('temp', 'seats'), dtype('float32'), (4, 2), (4,))
        """
        from featurestore.training.reading import matrix
        from featurestore.training.transformations import resolve_transformations

        fitted = resolve_transformations(self, transformed)
        arrays = matrix(self.path, self.manifest, split, columns=columns, transform=fitted)
        if self.matrices is not None:
            self.matrices.append(
                {
                    "split": split,
                    "columns": None if columns is None else list(columns),
                    "transformed": None if fitted is None else fitted.sha256,
                    "form": "matrix",
                    "nulls": "nan",
                }
            )
        return arrays

    def read(self, split: str) -> FeatureFrame:
        """Return all columns of the rows of a split, in canonical order.

        >>> frame = store.get_training_dataset("late_flights").read("train")
        >>> frame.select(["late", "temp"]).columns
        ['late', 'temp']
        """
        from featurestore.training.reading import split_frame

        frame = split_frame(self, split)
        if self.matrices is not None:
            # Which columns the function selects is unknown.
            state = {"split": split, "columns": None, "transformed": None}
            self.matrices.append({**state, "form": "frame", "nulls": "nan"})
        return frame

    def verify(self, *, recompute: bool = False) -> VerifyReport:
        """Read all files and report differences from the manifest.

        Args:
            recompute: Whether to also run the plan at the pinned Delta versions and compare every
                byte.

        >>> print(store.get_training_dataset("late_flights").verify(recompute=True))
        late_flights version 1: ok, 4 rows, 2 files
        """
        if recompute:
            from featurestore.training.recompute import verify_and_recompute

            return verify_and_recompute(self.path, self.manifest, session=self.session)
        from featurestore.training.verification import verify

        return verify(self.path, self.manifest)

    def download(self, path: str | os.PathLike[str]) -> TrainingDataset:
        """Copy the dataset to a local directory and open the copy.

        Each file is checked against the manifest, which is written last. Repeat an interrupted call
        to continue the download. It allows programs that read only local files (TensorFlow's
        TFRecordDataset, petastorm) to use a dataset at a URI.

        Raises:
            InvalidArgument: The directory contains another dataset.
            DatasetDamaged: The SHA-256 of a file differs from the manifest.

        >>> copy = store.get_training_dataset("late_flights").download("late-flights-here")
        >>> copy.verify().ok
        True
        """
        from featurestore.training.download import download, stored_bytes

        directory = download(self.manifest, stored_bytes(self.path), os.fspath(path))
        return TrainingDataset(directory, self.manifest, self.session)

    def staleness(self) -> DatasetStaleness:
        """Return the changes of the feature groups that the dataset was created from.

        Only logs are read. ``drift`` compares the distributions.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> dataset.staleness().stale
        False
        >>> commit = store.insert_into_featuregroup([{"tailnum": "N30", "seats": 4}], "planes")
        >>> [each.featuregroup for each in dataset.staleness().sources if each.stale]
        ['planes']

        Raises:
            InvalidArgument: The dataset was opened without a store.
        """
        from featurestore.training.comparison import dataset_staleness

        return dataset_staleness(self._require_session("staleness"), self.manifest)

    def drift(self) -> DatasetDrift:
        """Compare the distributions of the source groups at the export with their current ones.

        It compares their statistics at the pinned Delta versions with their current statistics.

        >>> drift = store.get_training_dataset("late_flights").drift()
        >>> drift.ok, drift.drifted
        (True, ())

        Raises:
            InvalidArgument: The dataset was opened without a store.
        """
        from featurestore.training.comparison import dataset_drift

        return dataset_drift(self._require_session("drift"), self.manifest)

    def _require_session(self, method: str) -> Session:
        if self.session is None:
            raise InvalidArgument(
                f"{method}() requires a store, but this dataset was opened by its path.",
                hint=f"featurestore.connect(...).get_training_dataset(name).{method}()",
            )
        return self.session

    @property
    def stale(self) -> bool | None:
        """Whether a source has changed since the export; None if the dataset was opened by path.

        Only logs are read.
        """
        from featurestore.training.comparison import is_stale

        return None if self.session is None else is_stale(self.session, self.manifest)

    def diff(self, other: TrainingDataset) -> DatasetDiff:
        """Compare the columns, sources, rows and statistics of this dataset with another one.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> print(dataset.diff(dataset))
        late_flights version 1 -> late_flights version 1: the same rows
          train: +0 -0 ~0 =4 rows
        """
        from featurestore.training.comparison import diff, drift_between

        return diff(
            self.path, self.manifest, other.path, other.manifest, drift=drift_between(self, other)
        )

    def statistics(self, split: str) -> Statistics:
        """Return the statistics of a split; compute them if the export did not.

        >>> store.get_training_dataset("late_flights").statistics("train").column("seats").mean
        150.0
        """
        from featurestore.statistics import Statistics

        entry = self.manifest.statistics.get(self.manifest.split(split).name)
        if entry is None:
            from featurestore.training.export.split_statistics import count_split_statistics

            return count_split_statistics(self, split)
        # Paths in a manifest must not lead outside of the dataset.
        path = storage_for(self.path).resolve_inside(self.path, entry["path"])
        if files.sha256(path) != entry["sha256"]:
            raise DatasetDamaged(
                f"The SHA-256 of the statistics file {path!r} differs from the manifest.",
                hint="restore the file from a copy, or create the dataset again",
            )
        return Statistics.from_json(files.read_json(path))

    def reader(
        self,
        split: str,
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        remainder: str = "drop",
        columns: Sequence[str] | None = None,
        nulls: str | Mapping[str, Any] = "error",
        lanes: int | None = None,
        window_rows: int | None = None,
        transformed: bool | Transformations | None = None,
        class_weights: ClassWeights | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        verify: bool = False,
    ) -> Reader:
        """Return the reader of a split.

        The reader yields each row exactly once, in equal numbers of steps for any number of workers
        (see docs/training.md).

        ``class_weights`` become sample weights in every framework and strategy. They are
        "balanced" (computed from the training split), ``{class: weight}``, or for several labels
        ``{label: "balanced"}`` and ``{label: {class: weight}}``. The weights of several labels and
        the weight column, if any, are multiplied; labels without class weights have the weight 1.
        Padding has the weight 0.

        ``cache`` is a local folder for copies of the shards, which all workers of a machine share.
        Each shard is fetched and checked once. If the cache exceeds ``cache_bytes``, the least
        recently used shards are removed. Without ``cache``, random-access TFRecord at a URI is read
        by range requests with prefetching, and shards of other formats are cached in
        ``$XDG_CACHE_HOME/featurestore/shards``.

        ``verify=True`` compares checksums while rows are read, in every framework: of each record
        of random-access TFRecord, and of each shard of other formats when it is opened
        (docs/formats.md has the price). Damage raises DatasetDamaged with the name of the file.
        Without it, only the sizes of shards are compared. The batches are the same.

        ``transformed``: None applies the transformations that the dataset was created with, if any;
        False returns the stored values; a result of ``fit`` applies these transformations.

        An input that is a timestamp, in a dataset of an earlier release, is refused unless a
        transformation converts it.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> dataset.reader("train", global_batch_size=2).steps_per_epoch
        2
        """
        from featurestore.readers import open_reader
        from featurestore.training.reading import check_reader_inputs
        from featurestore.training.transformations import resolve_transformations

        transform = resolve_transformations(self, transformed)
        check_reader_inputs(self.manifest, columns, transform)
        return open_reader(
            self.path,
            self.manifest,
            split=split,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            remainder=remainder,
            columns=columns,
            nulls=nulls,
            lanes=lanes,
            window_rows=window_rows,
            transform=transform,
            cache=open_cache(cache, cache_bytes),
            class_weights=class_weights,
            verify=verify,
        )

    def resume(
        self,
        state: Mapping[str, Any],
        *,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        verify: bool = False,
    ) -> tuple[Reader, int, int]:
        """Return (reader, epoch, step) for a state that ``reader.state`` returned.

        The state must belong to the manifest of this dataset. ``reader`` describes ``cache`` and
        ``verify``, which are not part of a state.

        >>> dataset = store.get_training_dataset("late_flights")
        >>> state = dataset.reader("train", global_batch_size=2).state(epoch=0, step=1)
        >>> reader, epoch, step = dataset.resume(state)
        >>> (epoch, step)
        (0, 1)
        """
        from featurestore.readers import resume
        from featurestore.training.transformations import read_by_hash

        transform = None
        # A state identifies the transformations by hash, since they may be a later fit than the
        # dataset's.
        if state.get("transformed") is not None:
            transform = read_by_hash(self.path, self.manifest, state["transformed"])
        return resume(
            self.path,
            self.manifest,
            state,
            transform=transform,
            cache=open_cache(cache, cache_bytes),
            verify=verify,
        )

    def petastorm_reader(
        self, split: str, *, worker: int = 0, workers: int = 1, **options: Any
    ) -> Any:
        """Return a petastorm batch reader of one worker's row groups of a split.

        Args:
            split: Name of the split.
            worker: Number of this worker, from 0.
            workers: Number of workers; divides the row groups.
            options: Passed to ``petastorm.make_batch_reader``.

        >>> frame = store.get_featuregroup("weather")
        >>> dataset = store.create_training_dataset(frame, "weather_rows", data_format="petastorm")
        Training dataset 'weather_rows' version 1
        inputs:   temp, wind
        key:      origin
        time:     measured_at
        >>> with dataset.petastorm_reader("train", num_epochs=1) as reader:  # doctest: +SKIP
        ...     rows = sum(len(batch.temp) for batch in reader)
        """
        require_local(
            self.path, "Petastorm readers", "dataset.download(path).petastorm_reader(...)"
        )
        return find_format(self.manifest.data_format).native_reader(
            self.path, self.manifest, split=split, worker=worker, workers=workers, **options
        )
