"""Metrics of a PyTorch model over every row once: ranks share the rows and add their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument
from featurestore.readers.selection import PADDING_WEIGHT
from featurestore.readers.torch import ElementBuilder, refuse_strings
from featurestore.readers.torch_library import distributed, require_torch, torch

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

_HINT = (
    'return {"loss": cross_entropy(model(inputs), label, reduction="none")}: a tensor with one '
    "value for each row"
)


def process_rank() -> tuple[int, int]:
    """Return (rank, world size) of ``torch.distributed``, (0, 1) if it is not initialized."""
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def evaluate_by_function(
    reader: Reader, function: Callable[..., Mapping[str, Any]]
) -> dict[str, float]:
    """Return the weighted means of the values that a function returns for each row.

    Args:
        reader: A reader padded for the ranks, with one lane each, or with ``remainder="keep"``.
        function: Function from an element of ``torch_loader`` to ``{name: (rows,)}``.
    """
    require_torch()
    refuse_strings(reader)
    rank, ranks = process_rank()
    sums: dict[str, float] = {}
    weights = 0.0
    builder = ElementBuilder(reader, removes_padding=True)
    steps_of_rank = reader.step_ranges(1, worker=rank, workers=ranks, start_epoch=0, start_step=0)
    with torch.no_grad():
        for steps, arrays in reader.read(steps_of_rank):
            is_real = (arrays[PADDING_WEIGHT] > 0).reshape(-1, steps.worker_epoch.batch_rows)
            for element, real_rows in zip(builder.elements(steps, arrays), is_real, strict=True):
                element_parts = element if isinstance(element, tuple) else (element,)
                # All ranks call their models equally often, since a wrapped model synchronizes its
                # buffers in each call. Batches without real rows do not count.
                rows = int(real_rows.sum())
                weight = torch.ones(rows) if rows else torch.zeros(len(real_rows))
                if reader.weight is not None:
                    weight = element_parts[-1]
                for name, values in _check_metrics(function(*element_parts), len(weight)).items():
                    counted_values = torch.where(weight > 0, values.detach().cpu().double(), 0.0)
                    sums[name] = sums.get(name, 0.0) + float(
                        (counted_values * weight.double()).sum()
                    )
                weights += float(weight.double().sum())
    totals = [(sums, weights)] * ranks
    if ranks > 1:
        distributed.all_gather_object(totals, (sums, weights))
    weight = math.fsum(each for _, each in totals)
    if not weight:
        raise InvalidArgument(
            "The weights of the split have the sum 0, so its metrics have no mean.",
            hint="check the weight column: reader.weight",
        )
    means = {}
    for name in sums:
        means[name] = math.fsum(rank_sums[name] for rank_sums, _ in totals) / weight
    return means


def _check_metrics(figures: Any, rows: int) -> Mapping[str, Any]:
    """Return the metrics of a function after checking their shapes.

    Raises:
        InvalidArgument: They are not tensors with one value for each row.
    """
    if not isinstance(figures, Mapping):
        raise InvalidArgument(
            f"The function returned {type(figures).__name__}, which is not a mapping.", hint=_HINT
        )
    for name, values in figures.items():
        shape = tuple(getattr(values, "shape", ()))
        if not isinstance(values, torch.Tensor) or shape != (rows,):
            raise InvalidArgument(
                f"The function returned {name!r} of shape {shape} for {rows} rows.", hint=_HINT
            )
    return figures
