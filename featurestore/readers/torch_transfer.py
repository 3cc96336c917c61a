"""Transfer of batches from a worker of a ``DataLoader`` to its main process.

Each tensor is sent as its own file descriptor, with all the memory that it is a view of. So the
columns of one type and shape are stacked into one tensor of this batch only, and split again by the
receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from featurestore.readers.ragged import Ragged
from featurestore.readers.torch_library import torch


class Columns(dict[str, Any]):
    """The columns of a batch, stacked for pickling; unpickled as a dict."""

    def __copy__(self) -> Columns:
        return Columns(self)

    def __reduce__(self) -> tuple[Any, ...]:
        groups: dict[Any, list[str]] = {}
        other_columns = {}
        for name, values in self.items():
            if isinstance(values, torch.Tensor):
                groups.setdefault((values.dtype, values.shape), []).append(name)
            else:
                other_columns[name] = values
        stacked = [torch.stack(list(map(self.__getitem__, names))) for names in groups.values()]
        return restore_columns, (list(self), list(groups.values()), stacked, other_columns)


def restore_columns(
    order: Sequence[str],
    groups: Sequence[Sequence[str]],
    stacked: Sequence[Any],
    other_columns: Any,
) -> dict[str, Any]:
    """Return the columns of an unpickled batch."""
    columns = dict(other_columns)
    for names, tensor in zip(groups, stacked, strict=True):
        columns.update(zip(names, tensor.unbind(0), strict=True))
    return {name: columns[name] for name in order}


def pack_element(element: Any) -> Any:
    """Return an element for the transfer from a worker."""
    if isinstance(element, Ragged):
        return element
    if isinstance(element, tuple):
        return tuple(map(pack_element, element))
    if isinstance(element, dict):
        return Columns(element)
    return element.clone()
