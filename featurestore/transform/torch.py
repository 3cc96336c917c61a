"""PyTorch operations for transformations, and the preprocessor module.

Strings are numpy arrays, since PyTorch has no string type.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from featurestore.errors import missing_extra
from featurestore.readers.columns import Tensor
from featurestore.transform.apply import decode_column, to_lists, transform_columns
from featurestore.transform.fitted import FittedColumn, Transformations
from featurestore.transform.ops import Lists, NumpyOps, Value, item_kind, pad_rows
from featurestore.transform.steps import ValueType


def import_torch() -> Any:
    """Import and return ``torch``; raise MissingExtra if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise missing_extra("torch", "torch") from error


class TorchOps:
    """The operations of PyTorch. Strings are numpy arrays of bytes until a step encodes them."""

    def __init__(self) -> None:
        self._torch: Any = import_torch()
        self._numpy = NumpyOps()

    def number(self, value: Value) -> Tensor:
        torch = self._torch
        data = torch.as_tensor(value.data).to(torch.float64)
        present = value.present
        if value.value_type == "code":
            present = data != 0
        if present is None:
            return data
        return torch.where(self._broadcast_mask(present, data), data, np.nan)

    def where(self, condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        # Strings are numpy arrays, which torch.where does not accept.
        if isinstance(yes, np.ndarray):
            return np.where(self._to_numpy(condition), yes, no)
        return self._torch.where(condition, yes, no)

    def is_floating(self, data: Tensor) -> bool:
        return bool(data.is_floating_point())

    def isnan(self, data: Tensor) -> Tensor:
        return self._torch.isnan(data)

    def floor(self, data: Tensor) -> Tensor:
        return self._torch.floor(data)

    def exponent(self, data: Tensor) -> tuple[Tensor, Tensor]:
        half, exponent = self._torch.frexp(data)
        return half * 2.0, (exponent - 1).to(self._torch.float64)

    def count_up_to(self, edges: Sequence[float], data: Tensor) -> Tensor:
        torch = self._torch
        edge_tensor = torch.tensor(list(edges), dtype=torch.float64, device=data.device)
        counts = torch.searchsorted(edge_tensor, data.contiguous(), right=True)
        return torch.where(torch.isnan(data), 0, counts)

    def position(self, vocabulary: Sequence[Any], value: Value) -> Any:
        return self._torch.from_numpy(self._numpy.position(vocabulary, self._as_numpy(value)))

    def bucket(self, value: Value, buckets: int) -> Tensor:
        return self._torch.from_numpy(self._numpy.bucket(self._as_numpy(value), buckets))

    def words(self, value: Value, *, lower: bool, length: int) -> Value:
        words = self._numpy.words(self._as_numpy(value), lower=lower, length=length)
        return Value("text", words.data, self._torch.from_numpy(words.present))

    def pad_lists(
        self, lists: Lists, length: int, *, last: bool
    ) -> tuple[ValueType, Tensor, Tensor]:
        rows, present = pad_rows(lists, length, last=last)
        if rows.dtype != object:
            rows = self._torch.from_numpy(rows)
        return item_kind(lists), rows, self._torch.from_numpy(present)

    def stack(self, arrays: Sequence[Tensor]) -> Tensor:
        return self._torch.stack(list(arrays), dim=-1)

    def one_hot(self, codes: Tensor, size: int) -> Tensor:
        torch = self._torch
        positions = torch.arange(size, device=codes.device)
        return (codes[..., None] == positions).to(torch.float64)

    def cast(self, data: Tensor, dtype: str) -> Tensor:
        return self._torch.as_tensor(data).to(getattr(self._torch, dtype))

    def constant(self, value: Any, value_type: ValueType) -> Tensor:
        if value_type == "text":
            return self._numpy.constant(value, value_type)
        return self._torch.tensor(value, dtype=self._torch.int64)

    def _as_numpy(self, value: Value) -> Value:
        present = value.present
        if present is not None:
            present = self._to_numpy(present)
        return Value(value.value_type, self._to_numpy(value.data), present)

    def _to_numpy(self, data: Tensor) -> Tensor:
        if isinstance(data, np.ndarray):
            return data
        return data.detach().cpu().numpy()

    def _broadcast_mask(self, present: Tensor, data: Tensor) -> Tensor:
        for _ in range(len(data.shape) - len(present.shape)):
            present = present[..., None]
        return present


def transform_batch(
    transformations: Transformations, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Transform the columns of a batch that have a chain; return the others unchanged.

    Strings are lists or arrays of str or bytes, with None for missing values. Other columns are
    tensors or arrays.
    """
    return transform_columns(TorchOps(), transformations, batch, _read_column)


def _read_column(column: FittedColumn, values: Any) -> tuple[Any, Any | None]:
    """Convert an input column to a tensor, an array of bytes or lists, and its mask."""
    torch = import_torch()
    is_text = column.input_form.value_type in ("text", "binary")
    is_list = column.input_form.value_type == "list"
    if isinstance(values, torch.Tensor) and not is_text and not is_list:
        return values, None
    if is_list and isinstance(values, torch.Tensor):
        values = values.unbind()  # nested
    data, present = decode_column(column, values)
    if present is not None:
        present = torch.from_numpy(present)
    if is_text:
        return data, present
    if is_list:
        return to_lists(data, column.input_form.item), present
    return torch.from_numpy(np.ascontiguousarray(data)), present


def preprocessor_module(fitted: Transformations) -> Any:
    """Return a parameterless module that transforms a dict of tensors and strings."""
    torch = import_torch()

    # The class is defined here, because PyTorch is imported on demand.
    class Preprocessor(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Module that applies fitted transformations to a dict and passes other columns through."""

        def __init__(self) -> None:
            super().__init__()
            self.transformations = fitted

        def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return transform_batch(self.transformations, batch)

        def get_extra_state(self) -> dict[str, Any]:
            """Return the fitted transformations for ``state_dict``."""
            return self.transformations.to_json()

        def set_extra_state(self, state: Mapping[str, Any]) -> None:
            """Load the fitted transformations of a ``state_dict``."""
            self.transformations = Transformations.from_json(state)

    return Preprocessor()
