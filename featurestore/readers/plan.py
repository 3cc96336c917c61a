"""ReadPlan: the files, blocks and step ranges of a split, as readers and their adapters read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from featurestore.errors import ReaderConfigError
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.model.runtime import usable_cores
from featurestore.plugins.format import RecordChecksums, find_format
from featurestore.readers.batches import Blocks, Iterations, StepRange, StepRanges, WorkerSteps
from featurestore.readers.blocks import PackedBlocks, RecordBlocks, WindowBlocks
from featurestore.readers.class_weights import ClassWeighting, ClassWeights, build_class_weighting
from featurestore.readers.columns import (
    PADDING_WEIGHT,
    SAMPLE_WEIGHT,
    NumpyArray,
    NumpyDtype,
    SelectedColumn,
    to_numpy,
    to_ragged,
)
from featurestore.readers.order import ORDER_VERSION, ReaderOrder
from featurestore.readers.prefetch import BufferPool, RangedShardFiles, prefetch
from featurestore.readers.shardfiles import RowRanges, ShardFiles
from featurestore.readers.transformed import (
    ArraysFunction,
    Transform,
    TransformedColumns,
    TransformedRecords,
    TransformedWindows,
    zero_based_label_codes,
)
from featurestore.storage import storage_for
from featurestore.storage.shards import ShardCache
from featurestore.storage.verified import VerifiedShards

# Arrays by column name. Columns with variable-length lists are ``Ragged``.
Batch = dict[str, Any]

# Size limits of a step range.
_RANGE_ROWS = 32_768
_RANGE_BYTES = 16 * 1024 * 1024
_WIDE_STEP_BYTES = 4 * 1024 * 1024
_WIDE_COLUMN_BYTES = 1024 * 1024
_PREFETCHED_RANGES = 3
# For records in object stores: the number of windows to cache, and the bytes to prefetch.
_CACHED_WINDOWS = 2
_PREFETCHED_BYTES = 256 * 1024 * 1024
_GATHER_THREADS = 2


@dataclass(frozen=True)
class ReadPlan:
    """What a reader reads: the files of a split, their columns, and the order of their rows.

    Attributes:
        settings: The arguments of the reader, which its states contain.
        file_columns: The columns before ``weighing`` adds its weight column.
        memory: Reusable buffers for object store blocks: allocating pages takes longer than
            reading a disk.
    """

    path: str
    manifest: Manifest = field(repr=False)
    split: ManifestSplit = field(repr=False)
    order: ReaderOrder
    columns: tuple[SelectedColumn, ...] = field(repr=False)
    settings: JsonMapping = field(repr=False)
    transform: TransformedColumns | None = field(default=None, repr=False)
    row_ranges: RowRanges | None = field(default=None, repr=False)
    cache: ShardCache | None = field(default=None, repr=False)
    weighing: ClassWeighting | None = field(default=None, repr=False)
    file_columns: tuple[SelectedColumn, ...] = field(default=(), repr=False)
    verify: bool = field(default=False, repr=False)
    verified: VerifiedShards = field(default_factory=VerifiedShards, repr=False, compare=False)
    memory: BufferPool = field(default_factory=partial(BufferPool, None), repr=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, equal on every worker."""
        return self.order.steps_per_epoch

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label columns that are read."""
        return tuple(column.name for column in self.columns if column.label)

    @property
    def weight(self) -> str | None:
        """Name of the weight column, None if it is not read."""
        return next((column.name for column in self.columns if column.weight), None)

    @cached_property
    def ragged(self) -> dict[str, NumpyDtype]:
        """Item types of the columns that are yielded as variable-length lists."""
        return {column.name: column.items for column in self.columns if column.items is not None}

    @cached_property
    def row_bytes(self) -> int:
        """Size of a row in memory, in bytes."""
        return sum(column.row_bytes for column in self.columns)

    @cached_property
    def manifest_hash(self) -> str:
        """The content hash of the manifest."""
        return self.manifest.content_hash

    def state(self, epoch: int, step: int) -> JsonDict:
        """Return the settings and a position as a small JSON object; see ``Reader.state``."""
        if not 0 <= step <= self.steps_per_epoch or epoch < 0:
            raise ReaderConfigError(
                f"Epoch {epoch} has no step {step}: an epoch has {self.steps_per_epoch} steps."
            )
        # The end of an epoch and the start of the next one are the same position.
        if step == self.steps_per_epoch:
            epoch, step = epoch + 1, 0
        return {
            "order_version": ORDER_VERSION,
            "dataset": {"name": self.manifest.name, "version": self.manifest.version},
            "manifest": self.manifest_hash,
            **self.settings,
            "epoch": epoch,
            "step": step,
        }

    def with_order(self, order: ReaderOrder) -> ReadPlan:
        """Return a plan that reads the same rows in another order."""
        settings = {**self.settings, "remainder": order.remainder}
        return replace(self, order=order, settings=settings)

    def weighed(self, class_weights: ClassWeights) -> ReadPlan:
        """Return a plan with class weights and the same order."""
        if self.weighing is not None and self.weighing.labels:
            raise ReaderConfigError(
                "The reader already has class weights.", hint="omit class_weights= in fit"
            )
        transform = None if self.transform is None else self.transform.transform
        selected = self.file_columns or self.columns
        labels = yielded_labels(self.files(), selected, self.row_ranges, transform)
        weighing = build_class_weighting(
            self.manifest, selected, class_weights, transform=transform, label_values=labels
        )
        if weighing is None:
            return self
        return replace(
            self, columns=weighing.columns(selected), weighing=weighing, file_columns=selected
        )

    def check_step(self, step: int) -> None:
        """Raise ReaderConfigError unless ``0 <= step <= steps_per_epoch``."""
        if not 0 <= step <= self.steps_per_epoch:
            raise ReaderConfigError(
                f"start_step={step} is not in an epoch of {self.steps_per_epoch} steps.",
                hint=f"0 to {self.steps_per_epoch}",
            )

    def iterations(self, worker_steps: WorkerSteps) -> Iterations:
        """Return the step ranges of each iteration over a dataset.

        The first iteration has the steps of the worker.
        """
        first, total = worker_steps, self.steps_per_epoch
        steps = max(0, first.epochs * total - first.start_step)

        def ranges_for_iteration(iteration: int) -> StepRanges:
            epoch, step = first.start_epoch, first.start_step
            if iteration and total:
                complete_epochs, step = divmod(step + iteration * steps, total)
                epoch += complete_epochs
            own_steps = WorkerSteps(first.epochs, epoch, step, first.worker, first.workers)
            return self.step_ranges(own_steps, steps=steps)

        return Iterations(ranges_for_iteration)

    def step_ranges(
        self, worker_steps: WorkerSteps, *, steps: int | None = None, max_bytes: int = _RANGE_BYTES
    ) -> StepRanges:
        """Divide the steps of several epochs into ranges that are read together.

        The first range has one step; later ranges grow up to ``max_bytes``. ``steps`` is the
        total number of steps; None reads to the end of the last epoch.

        Raises:
            ReaderConfigError: The workers cannot share the lanes, or the step does not exist.
        """
        self.order.check_workers(worker_steps.worker, worker_steps.workers)
        self.check_step(worker_steps.start_step)
        limit = self.steps_at_once(worker_steps.workers, max_bytes=max_bytes)
        return StepRanges(self.order, worker_steps, max_steps_per_range=limit, steps=steps)

    def steps_at_once(self, workers: int, *, max_bytes: int = _RANGE_BYTES) -> int:
        """Return the maximum number of steps per range.

        Steps with many bytes are read one at a time, because splitting a range into steps would
        cost more than it saves.
        """
        batch = self.order.worker_batch(workers)
        column_bytes = max([column.row_bytes for column in self.columns], default=0)
        is_wide = batch * self.row_bytes >= _WIDE_STEP_BYTES
        # The copy of one large array takes longer than reading a range of one step.
        if is_wide or batch * column_bytes >= _WIDE_COLUMN_BYTES:
            return 1
        rows = min(_RANGE_ROWS, max_bytes // max(1, self.row_bytes))
        return max(1, rows // batch)

    def read(self, ranges: Iterable[StepRange]) -> Iterator[tuple[StepRange, Batch]]:
        """Yield step ranges with columns of shape (steps * batch, ...), prefetched by threads."""
        source = self.blocks()
        # Windows must be read in order, but several threads may gather records.
        threads = 1
        if isinstance(source, PackedBlocks):
            threads = min(_GATHER_THREADS, usable_cores())

        def read(steps: StepRange) -> tuple[StepRange, Batch]:
            return steps, source.read(steps)

        return prefetch(read, ranges, threads=threads, limit=_PREFETCHED_RANGES)

    def batches(self, ranges: StepRanges) -> Iterator[Batch]:
        """Yield the batches of step ranges."""
        for steps, arrays in self.read(ranges):
            size = steps.worker_epoch.batch_rows
            for start in range(0, steps.row_count, size):
                yield self.finish_rows(
                    {name: array[start : start + size] for name, array in arrays.items()}
                )

    def finish_rows(self, arrays: Batch) -> Batch:
        """Apply the padding policy and convert variable-length lists, as ``batches`` yields them."""
        return self._convert_ragged_columns(self._apply_padding_policy(arrays))

    def _apply_padding_policy(self, batch: Batch) -> Batch:
        """Remove padding rows from a batch, or convert their weights to the weight column."""
        weight = batch.pop(PADDING_WEIGHT, None)
        if weight is None:
            return batch
        if self.order.remainder == "keep":
            if weight.all():
                return batch
            return {name: array[weight > 0] for name, array in batch.items()}
        # A weight column of the dataset is 0 in padding rows, because all their values are 0.
        if self.weight is None:
            batch[SAMPLE_WEIGHT] = weight
        return batch

    def _convert_ragged_columns(self, batch: Batch) -> Batch:
        """Convert the variable-length lists of a batch to values and row splits."""
        for name, items in self.ragged.items():
            batch[name] = to_ragged(batch[name], items)
        return batch

    def files(self) -> ShardFiles:
        """Return the files of the split."""
        split_files = shard_files(
            self.path,
            self.manifest,
            self.split,
            row_ranges=self.row_ranges,
            cache=self.cache,
            verify=self.verify,
            verified=self.verified,
        )
        # Only fixed-width records can be read by ranges; shards of other layouts are cached as
        # files. Without checksums of records, only complete shards can be verified.
        is_cached = split_files.access is None or self.cache is not None
        if self.verify and not isinstance(split_files.access, RecordChecksums):
            is_cached = True
        if is_cached or storage_for(self.path).is_local:
            return split_files
        order = self.order
        # One more block per lane, because lanes may start within a block. One more per shard,
        # because a block that spans two shards is cached in two parts.
        window_blocks = order.lanes * (order.window_rows // order.block_rows + 1)
        return RangedShardFiles(
            self.path,
            self.manifest,
            self.split,
            split_files.format,
            split_files.access,
            row_ranges=self.row_ranges,
            verify=self.verify,
            read_blocks=_CACHED_WINDOWS * window_blocks + len(self.split.shards),
            ahead_bytes=_PREFETCHED_BYTES,
            memory=self.memory,
        )

    def blocks(self) -> Blocks:
        """Return the block reader for this layout."""
        files = self.files()
        file_columns = self.file_columns or self.columns
        finish: ArraysFunction | None = self.weighing
        if self.transform is not None:
            file_columns, finish = self.transform.file_columns, self.transform
            if self.weighing is not None:
                transform, weigh = self.transform, self.weighing
                finish = lambda arrays: weigh(transform(arrays))  # noqa: E731
        if files.access is not None:
            records = RecordBlocks(files, files.access, file_columns)
            return records if finish is None else TransformedRecords(records, finish)
        windows = WindowBlocks(files, file_columns)
        return windows if finish is None else TransformedWindows(windows, finish)


def yielded_labels(
    files: ShardFiles,
    selected: Sequence[SelectedColumn],
    rows: RowRanges | None,
    transform: Transform | None,
) -> dict[str, NumpyArray]:
    """Return the non-null labels of row ranges as readers yield them; {} if ``rows`` is None."""
    if rows is None:
        return {}
    names = [column.name for column in selected if column.label]
    starts, stops = (np.array(bounds, dtype=np.int64) for bounds in zip(*rows, strict=True))
    table = files.read(starts, stops, names)
    values = {}
    for name in names:
        array, present = to_numpy(table[name], name=name)
        if transform is not None and transform.form(name) is not None:
            codes = transform.apply_chain(name, array, present)
            array = zero_based_label_codes(transform, name, codes, real=present)
        values[name] = array if present is None else array[present]
    return values


def shard_files(
    path: str,
    manifest: Manifest,
    split: ManifestSplit,
    *,
    row_ranges: RowRanges | None = None,
    cache: ShardCache | None = None,
    verify: bool = False,
    verified: VerifiedShards | None = None,
) -> ShardFiles:
    """Return the files of a split."""
    data_format = find_format(manifest.data_format)
    access = data_format.record_access(manifest.layout)
    verified = VerifiedShards() if verified is None else verified
    return ShardFiles(
        path, manifest, split, data_format, access, row_ranges, cache, verify, verified
    )
