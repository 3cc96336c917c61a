"""Batches on their way from a worker of a ``DataLoader``.

Every tensor crosses as a file descriptor of its own, and takes with it all the memory that it is a
view of. So the columns of one type and shape cross as one tensor that holds this batch alone, and
are cut again on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from featurestore.readers.ragged import Ragged
from featurestore.readers.torch_library import torch


class Columns(dict[str, Any]):
    """Columns of a batch that are pickled together; they arrive as a dict."""

    def __copy__(self) -> Columns:
        return Columns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        groups: dict[Any, list[str]] = {}
        rest = {}
        for name, values in self.items():
            if isinstance(values, torch.Tensor):
                groups.setdefault((values.dtype, values.shape), []).append(name)
            else:
                rest[name] = values
        together = []
        for names in groups.values():
            together.append(torch.stack([self[name] for name in names]))
        return restored, (list(self), list(groups.values()), together, rest)


def restored(
    order: Sequence[str], groups: Sequence[Sequence[str]], together: Sequence[Any], rest: Any
) -> dict[str, Any]:
    """Return the columns of a batch that has arrived."""
    found = dict(rest)
    for names, tensor in zip(groups, together, strict=True):
        found.update(zip(names, tensor.unbind(0), strict=True))
    return {name: found[name] for name in order}


def crossing(element: Any) -> Any:
    """Return an element as it leaves a worker."""
    if isinstance(element, Ragged):
        return element
    if isinstance(element, tuple):
        return tuple(map(crossing, element))
    if isinstance(element, dict):
        return Columns(element)
    return element.clone()
