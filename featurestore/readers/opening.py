"""Opening of readers: checks of all settings, default orders, and stored states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from featurestore import _current
from featurestore.arrow.schemas import type_from_json
from featurestore.errors import ManifestMismatch, ReaderConfigError
from featurestore.model.arguments import with_suggestions
from featurestore.model.json_object import JsonMapping
from featurestore.model.manifest import Manifest, ManifestSplit
from featurestore.plugins.format import find_format
from featurestore.readers.class_weights import (
    ClassWeights,
    build_class_weighting,
    weights_from_json,
    weights_to_json,
)
from featurestore.readers.columns import (
    SAMPLE_WEIGHT,
    Nulls,
    SelectedColumn,
    select_columns,
    value_dtype_and_shape,
)
from featurestore.readers.fills import fills_from_json, fills_to_json
from featurestore.readers.order import (
    ORDER_VERSION,
    ReaderOrder,
    check_at_least_one,
    default_lanes,
    is_integer,
)
from featurestore.readers.plan import ReadPlan, shard_files, yielded_labels
from featurestore.readers.reader import Reader
from featurestore.readers.shardfiles import RowRanges, check_shards
from featurestore.readers.transformed import Transform, plan_transformed_columns
from featurestore.storage.shards import ShardCache

# Default window size: this many rows over all lanes, or fewer if rows are wide. These numbers are
# part of order version 1.
DEFAULT_WINDOW_ROWS = 131_072
DEFAULT_WINDOW_BYTES = 128 * 1024 * 1024


@with_suggestions
def open_reader(
    path: str,
    manifest: Manifest,
    *,
    split: str,
    global_batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    remainder: str = "drop",
    columns: Sequence[str] | None = None,
    nulls: Nulls | str = "error",
    lanes: int | None = None,
    window_rows: int | None = None,
    transform: Transform | None = None,
    rows: RowRanges | None = None,
    cache: ShardCache | None = None,
    class_weights: ClassWeights | None = None,
    verify: bool = False,
) -> Reader:
    """Return the reader of a split after checking all settings and the shard files.

    Args:
        path: The dataset's directory.
        manifest: The dataset's manifest.
        split: Name of the split.
        global_batch_size: Number of rows per step over all workers.
        seed: Seed of the order; any integer.
        shuffle: False reads in canonical order.
        remainder: "drop", "keep" or "pad".
        columns: Columns to read; None is the inputs, the labels and the weight.
        nulls: "error", "mask" or ``{column: value}``.
        lanes: Streams of an epoch; None is the largest divisor of the global batch size up to 64.
        window_rows: Rows that are shuffled inside a lane; None is about 131,072 rows over all
            lanes.
        transform: Transformation of decoded columns, if any.
        rows: Ascending ranges of canonical rows to read; None reads all rows.
        cache: Local cache of shards. None reads fixed-width records of an object store by ranges,
            and other remote shards through the default cache of this machine.
        verify: Whether checksums of records or shards are compared when rows are read.
        class_weights: Weights of rows by label: "balanced", ``{class: weight}``, or ``{label:
            either of these}``, if any.

    Raises:
        ReaderConfigError: Settings contradict each other.
        DatasetDamaged: Shards are missing or have another size.
        NullsInColumns: Columns have nulls and no policy covers them.
    """
    _current.record_path_read(path)
    manifest_split = manifest.split(split)
    data_format = find_format(manifest.data_format)
    refusal = data_format.refuse_reading(manifest.layout)
    if refusal is not None:
        raise ReaderConfigError(refusal)
    null_handling: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    if transform is not None:
        null_handling, padded = transform.null_handling, transform.padded
    selected = select_columns(
        manifest,
        manifest_split,
        columns=columns,
        nulls=nulls,  # type: ignore[arg-type]
        null_handling=null_handling,
        padded=padded,
    )
    transformed = None
    if transform is not None:
        transformed = plan_transformed_columns(selected, transform)
        selected = transformed.columns
    split_files = shard_files(path, manifest, manifest_split, verify=verify)
    file_columns, label_values = selected, {}
    if class_weights is not None:
        label_values = yielded_labels(split_files, selected, rows, transform)
    weighing = build_class_weighting(
        manifest, selected, class_weights, transform=transform, label_values=label_values
    )
    if weighing is not None:
        selected = weighing.columns(selected)
    check_at_least_one("global_batch_size", global_batch_size)
    if lanes is None:
        lanes = default_lanes(global_batch_size)
    check_at_least_one("lanes", lanes)
    if window_rows is None:
        window_rows = default_window_rows(manifest, lanes=lanes)
    order = ReaderOrder(
        rows=_count_selected_rows(manifest_split, rows),
        block_rows=manifest.block_rows,
        window_rows=window_rows,
        global_batch_size=global_batch_size,
        lanes=lanes,
        seed=seed,
        shuffle=shuffle,
        remainder=remainder,  # type: ignore[arg-type]
    )
    _refuse_weight_name(selected, remainder)
    check_shards(path, manifest_split)
    split_files.check_rows()
    split_files.close()
    settings = {
        "split": split,
        "global_batch_size": global_batch_size,
        "seed": seed,
        "shuffle": shuffle,
        "remainder": remainder,
        "columns": None if columns is None else list(columns),
        "nulls": nulls if isinstance(nulls, str) else fills_to_json(nulls, manifest),
        "lanes": lanes,
        "window_rows": window_rows,
        "transformed": None if transform is None else transform.sha256,
    }
    if rows is not None:
        settings["rows"] = [list(row_range) for row_range in rows]
    if class_weights is not None:
        settings["class_weights"] = weights_to_json(class_weights)
    plan = ReadPlan(
        path,
        manifest,
        manifest_split,
        order,
        selected,
        settings,
        transformed,
        rows,
        cache,
        weighing,
        file_columns,
        verify,
        split_files.verified,
    )
    return Reader(plan)


def _count_selected_rows(split: ManifestSplit, rows: RowRanges | None) -> int:
    """Return the number of rows to read, after checking the ranges."""
    if rows is None:
        return split.rows
    count, last = 0, 0
    for first, end in rows:
        if not last <= first <= end <= split.rows:
            raise ReaderConfigError(
                f"rows={rows!r} are not ascending ranges of the {split.rows} rows of {split.name!r}."
            )
        count, last = count + end - first, end
    return count


def resume(
    path: str,
    manifest: Manifest,
    state: JsonMapping,
    *,
    transform: Transform | None = None,
    cache: ShardCache | None = None,
    verify: bool = False,
) -> tuple[Reader, int, int]:
    """Return (reader, epoch, step) for a state that ``Reader.state`` returned.

    ``transform`` must have the hash that is in the state; ``cache`` is a local shard cache. The
    state does not contain ``verify``, which does not affect the batches.

    Raises:
        ManifestMismatch: The state belongs to another manifest; the message names both hashes.
        ReaderConfigError: The state has another order version, or is incomplete.
    """
    required_keys = (
        "order_version",
        "manifest",
        "epoch",
        "step",
        "split",
        "global_batch_size",
        "lanes",
        "window_rows",
    )
    missing_keys = [name for name in required_keys if name not in state]
    if missing_keys:
        raise ReaderConfigError(f"This is not a reader state: it lacks {', '.join(missing_keys)}.")
    epoch, step = state["epoch"], state["step"]
    if not is_integer(epoch) or not is_integer(step) or epoch < 0:
        raise ReaderConfigError(f"This is not a reader state: epoch={epoch!r}, step={step!r}.")
    if state["order_version"] != ORDER_VERSION:
        raise ReaderConfigError(
            f"The state has order version {state['order_version']}; this release reads order "
            f"version {ORDER_VERSION}.",
            hint="resume with the release that wrote the state",
        )
    if state["manifest"] != manifest.content_hash:
        raise ManifestMismatch(
            f"The state belongs to the dataset with manifest {state['manifest']}; "
            f"{manifest.name!r} version {manifest.version} has manifest {manifest.content_hash}.",
            hint="open the dataset that the run was started with, or start a new run",
        )
    setting_names = ("seed", "shuffle", "remainder", "columns", "nulls", "lanes", "window_rows")
    settings = {name: state[name] for name in setting_names if name in state}
    if isinstance(settings.get("nulls"), Mapping):
        settings["nulls"] = fills_from_json(settings["nulls"], manifest)
    if "class_weights" in state:
        settings["class_weights"] = weights_from_json(state["class_weights"])
    if "rows" in state:
        settings["rows"] = tuple((first, end) for first, end in state["rows"])
    reader = open_reader(
        path,
        manifest,
        split=state["split"],
        global_batch_size=state["global_batch_size"],
        transform=transform,
        cache=cache,
        verify=verify,
        **settings,
    )
    reader.plan.check_step(step)
    return reader, epoch, step


def default_window_rows(manifest: Manifest, *, lanes: int) -> int:
    """Return the default number of rows per window.

    It is a multiple of the block size: about 131,072 rows or 128 MiB over all lanes, whichever is
    less. Sizes are computed from column types, so that the order does not depend on the file format.
    """
    row_bytes = 0
    for column in manifest.columns:
        dtype, shape = value_dtype_and_shape(type_from_json(column.type))
        row_bytes += dtype.itemsize * abs(int(np.prod(shape, dtype=np.int64)))
    rows = min(DEFAULT_WINDOW_ROWS, DEFAULT_WINDOW_BYTES // max(1, row_bytes))
    return max(1, rows // (lanes * manifest.block_rows)) * manifest.block_rows


def _refuse_weight_name(columns: Sequence[SelectedColumn], remainder: str) -> None:
    """Refuse a column that has the reserved name of the padding weights."""
    for column in columns:
        if column.name == SAMPLE_WEIGHT and remainder == "pad" and not column.weight:
            raise ReaderConfigError(
                f"Column {SAMPLE_WEIGHT!r} conflicts with the weight column that padding adds.",
                hint="create the dataset with weight='sample_weight', or read with remainder='drop'",
            )
