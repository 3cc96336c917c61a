"""Ray datasets of readers, whose blocks contain the rows of consecutive steps as Arrow tables.

This module is imported only if Ray is used. A read task reads consecutive steps and yields a block
for each step range, so that a Ray worker holds a few ranges in memory and never a complete task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.schemas import type_from_json
from featurestore.errors import missing_extra
from featurestore.readers.batches import Packing, WorkerSteps
from featurestore.readers.columns import NumpyArray, Ragged
from featurestore.readers.plan import ReadPlan

# Ray is optional, and Ray Data requires pandas. ``read_reader`` raises an error without them.
try:
    import ray
    from ray.data import Datasource, ReadTask, read_datasource
    from ray.data.block import BlockMetadata
except ImportError:
    ray = None
    Datasource = object


def read_reader(
    plan: ReadPlan,
    epoch: int,
    *,
    start_step: int,
    override_num_blocks: int | None,
    concurrency: int | None,
) -> Any:
    """Return the Ray dataset of an epoch; the arguments are those of ``Reader.ray_dataset``."""
    if ray is None:
        raise missing_extra("ray", "ray")
    plan.order.epoch(epoch)
    plan.check_step(start_step)
    datasource = ReaderDatasource(EpochBlocks(plan, epoch, start_step))
    dataset = read_datasource(
        datasource, override_num_blocks=override_num_blocks, concurrency=concurrency
    )
    # By default, Ray yields blocks in the order in which their tasks end. The context belongs to
    # this dataset only.
    dataset.context.execution_options.preserve_order = True
    return dataset


@dataclass(frozen=True)
class EpochBlocks:
    """The blocks of an epoch from ``start_step`` on, which any process can read."""

    plan: ReadPlan
    epoch: int
    start_step: int

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.plan.steps_per_epoch - self.start_step

    def row_count(self, start: int, stop: int) -> int:
        """Return the number of rows in steps ``[start, stop)``."""
        order = self.plan.order
        bounds = [step * order.global_batch_size for step in (start, stop)]
        if order.remainder == "keep":
            bounds = [min(bound, order.rows) for bound in bounds]
        return bounds[1] - bounds[0]

    def read(self, start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the rows of steps ``[start, stop)``, one table for each step range."""
        ranges = self.plan.step_ranges(WorkerSteps(1, self.epoch, start), steps=stop - start)
        for _, arrays in self.plan.read(ranges):
            yield self._table(arrays)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of all blocks."""
        order = self.plan.order
        packing = Packing(self.plan.columns, order.remainder != "drop", order.global_batch_size)
        empty_arrays = {
            name: np.empty((0, *shape), dtype) for name, (dtype, shape) in packing.outputs.items()
        }
        return self._table(empty_arrays).schema

    @cached_property
    def _texts(self) -> frozenset[str]:
        """The columns that contain strings; readers yield strings and binaries as bytes."""
        texts = []
        for column in self.plan.manifest.columns:
            dtype = type_from_json(column.type)
            while pat.is_list(dtype) or pat.is_large_list(dtype):
                dtype = dtype.value_type
            if pat.is_string(dtype) or pat.is_large_string(dtype):
                texts.append(column.name)
        return frozenset(texts)

    def _table(self, arrays: Mapping[str, NumpyArray]) -> pa.Table:
        columns = {
            name: _to_arrow(values, is_text=name in self._texts)
            for name, values in self.plan.finish_rows(dict(arrays)).items()
        }
        return pa.table(columns)


class ReaderDatasource(Datasource):  # type: ignore[misc]
    """The datasource of an epoch. Each read task reads consecutive steps."""

    def __init__(self, blocks: EpochBlocks) -> None:
        super().__init__()
        self._blocks = blocks

    def get_name(self) -> str:
        """Return the name that Ray shows for the read tasks."""
        return "FeatureStoreReader"

    def estimate_inmemory_data_size(self) -> int:
        """Return the approximate size of all blocks in bytes."""
        return self._bytes(self._blocks.start_step, self._blocks.plan.steps_per_epoch)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Return tasks of nearly equal numbers of steps, in reading order."""
        blocks = self._blocks
        count = max(1, min(parallelism, blocks.steps))
        bounds = [blocks.start_step + number * blocks.steps // count for number in range(count + 1)]
        tasks = []
        for start, stop in itertools.pairwise(bounds):
            metadata = BlockMetadata(
                num_rows=blocks.row_count(start, stop),
                size_bytes=self._bytes(start, stop),
                input_files=None,
                exec_stats=None,
            )
            task = ReadTask(
                _StepReader(blocks, start, stop),
                metadata,
                schema=blocks.schema,
                per_task_row_limit=per_task_row_limit,
            )
            tasks.append(task)
        return tasks

    def _bytes(self, start: int, stop: int) -> int:
        return self._blocks.row_count(start, stop) * self._blocks.plan.row_bytes


@dataclass(frozen=True)
class _StepReader:
    """The function of a read task. Ray pickles it, and the reader opens its files in the worker."""

    blocks: EpochBlocks
    start: int
    stop: int

    def __call__(self) -> Iterator[pa.Table]:
        return self.blocks.read(self.start, self.stop)


def _to_arrow(values: Any, *, is_text: bool) -> pa.Array:
    """Convert a column to Arrow; vectors and matrices become tensors of a fixed shape."""
    if isinstance(values, Ragged):
        items = _to_arrow(values.values, is_text=is_text)
        return pa.LargeListArray.from_arrays(pa.array(values.row_splits, pa.int64()), items)
    if values.dtype == object:
        array = pa.array(values.tolist(), pa.binary())
        return array.cast(pa.string()) if is_text else array
    if values.ndim == 1:
        return pa.array(values)
    if values.dtype == np.bool_:
        # Arrow packs booleans into bits, and tensors of bits cannot be converted to numpy.
        values = values.astype(np.uint8)
    dtype = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    items = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    return pa.ExtensionArray.from_storage(dtype, pa.FixedSizeListArray.from_arrays(items, width))
