"""Round trips of PyTorch programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.round_trips import (
    COMPLETE,
    NAN_VALUE,
    Case,
    Fitted,
    Shops,
    TrainingRows,
    cells,
    check_cells,
)
from tests.store_copies import copy_of


@pytest.fixture(scope="module")
def shops(empty_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with copy_of(empty_template, tmp_path_factory.mktemp("round-trips") / "store") as store:
        yield Shops(store)


class Sum(torch.nn.Module):
    """The weighted sum of the columns of a matrix."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nan_to_num(x, nan=NAN_VALUE) @ self.weights


def column_sum(names: tuple[str, ...], weights: list[float]) -> torch.nn.Module:
    """Return a module whose ``forward`` has one argument per column."""
    arguments = ", ".join(names)
    code = f"def forward(self, {arguments}):\n    return Sum.forward(self, stack([{arguments}]))"
    namespace: dict[str, Any] = {"Sum": Sum, "stack": lambda columns: torch.stack(columns, dim=1)}
    exec(code, namespace)
    module = type("ColumnSum", (Sum,), {"forward": namespace["forward"]})
    return module(weights)  # type: ignore[no-any-return]


def fit_torch(case: Case, rows: TrainingRows) -> Fitted:
    module, arguments = Sum(rows.weights), [torch.ones(3, len(rows.names))]
    if rows.are_columns:
        module = column_sum(rows.names, rows.weights)
        arguments = [torch.ones(3) for _ in rows.names]
    shapes = ({0: torch.export.Dim.DYNAMIC},) * len(arguments)
    program = torch.export.export(module.eval(), tuple(arguments), dynamic_shapes=shapes)
    return Fitted(program, rows.sum_row)


@COMPLETE
def test_program_predicts_training_values(is_complete: bool, shops: Shops, subtests: Any) -> None:
    check_cells(shops, cells("torch", is_complete=is_complete), fit_torch, subtests)
