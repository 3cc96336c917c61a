"""Figures of a PyTorch model over every row once: ranks share the rows and add up their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument
from featurestore.readers.selection import PADDING_WEIGHT
from featurestore.readers.torch import ElementForm, refuse_texts
from featurestore.readers.torch_library import distributed, require_torch, torch

if TYPE_CHECKING:
    from featurestore.readers.reader import Reader

_HINT = (
    'return {"loss": cross_entropy(model(inputs), label, reduction="none")}: a tensor with one '
    "value for each row"
)


def ranks_of_process() -> tuple[int, int]:
    """Return (rank, world size) of ``torch.distributed``; (0, 1) where it is not initialized."""
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def evaluate_by_function(
    reader: Reader, function: Callable[..., Mapping[str, Any]]
) -> dict[str, float]:
    """Return the means of what a function gives for each row, weighted by the weights of rows.

    Args:
        reader: A reader whose order is padded for the ranks, one lane for each, or keeps.
        function: Takes the parts of an element of ``torch_loader``, and returns ``{name: (rows,)}``.
    """
    require_torch()
    refuse_texts(reader)
    rank, ranks = ranks_of_process()
    sums: dict[str, float] = {}
    weights = 0.0
    form = ElementForm(reader, removes_padding=True)
    steps_of_rank = reader.step_ranges(1, worker=rank, workers=ranks, start_epoch=0, start_step=0)
    with torch.no_grad():
        for steps, arrays in reader.read(steps_of_rank):
            real = (arrays[PADDING_WEIGHT] > 0).reshape(-1, steps.part.batch_rows)
            for element, real_rows in zip(form.elements(steps, arrays), real, strict=True):
                parts = element if isinstance(element, tuple) else (element,)
                # Ranks make equal calls of their model, since a wrapped one exchanges its buffers
                # in each. The figures of a batch without real rows do not count.
                rows = int(real_rows.sum())
                weight = torch.ones(rows) if rows else torch.zeros(len(real_rows))
                if reader.weight is not None:
                    weight = parts[-1]
                for name, values in _checked(function(*parts), len(weight)).items():
                    counted = torch.where(weight > 0, values.detach().cpu().double(), 0.0)
                    sums[name] = sums.get(name, 0.0) + float((counted * weight.double()).sum())
                weights += float(weight.double().sum())
    totals = [(sums, weights)] * ranks
    if ranks > 1:
        distributed.all_gather_object(totals, (sums, weights))
    weight = math.fsum(each for _, each in totals)
    if not weight:
        raise InvalidArgument(
            "The rows of the split weigh 0 together, so their figures have no mean.",
            hint="look at the weight column: reader.weight",
        )
    means = {}
    for name in sums:
        means[name] = math.fsum(rank_sums[name] for rank_sums, _ in totals) / weight
    return means


def _checked(figures: Any, rows: int) -> Mapping[str, Any]:
    """Return the figures of a function if they are tensors with one value for each row.

    Raises:
        InvalidArgument: They are not.
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
