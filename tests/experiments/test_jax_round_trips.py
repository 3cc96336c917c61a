"""Round trips of functions of JAX.

They are not beside the tests of PyTorch, whose loaders fork: JAX refuses forks of its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

jax = pytest.importorskip("jax")


@pytest.fixture(scope="module")
def shops(empty_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with copy_of(empty_template, tmp_path_factory.mktemp("round-trips") / "store") as store:
        yield Shops(store)


def fit_jax(case: Case, rows: TrainingRows) -> Fitted:
    from jax import export

    weights = jax.numpy.array(rows.weights)

    def predict(inputs: Any) -> Any:
        x = inputs
        if isinstance(inputs, dict):
            x = jax.numpy.stack([inputs[name] for name in rows.names], axis=1)
        return jax.numpy.nan_to_num(x, nan=NAN_VALUE) @ weights

    (count,) = export.symbolic_shape("rows")
    shape = jax.ShapeDtypeStruct((count, len(rows.names)), np.float32)
    if rows.are_columns:
        shape = {name: jax.ShapeDtypeStruct((count,), np.float32) for name in rows.names}
    return Fitted(export.export(jax.jit(predict))(shape), rows.sum_row)


@COMPLETE
def test_function_predicts_training_values(is_complete: bool, shops: Shops, subtests: Any) -> None:
    check_cells(shops, cells("jax", is_complete=is_complete), fit_jax, subtests)
