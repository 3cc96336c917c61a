"""Labels that are text: refused by Keras calls before its graph runs, with the line that codes them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import UnsupportedType

ROWS = 40


def create(store: FeatureStore, label: Any, **arguments: Any) -> Any:
    frame = pa.table({"id": range(ROWS), "x": np.arange(ROWS, dtype=np.float32), "y": label})
    return store.create_training_dataset(frame, "d", label="y", key="id", **arguments)


def test_export_prints_what_text_labels_need(
    empty_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [("no", "yes")[row % 2] for row in range(ROWS)]
    line = "create_training_dataset(..., transformations={'y': t.vocabulary()})"
    create(empty_store, texts)
    assert line in capsys.readouterr().out
    create(empty_store, texts, transformations={"y": t.vocabulary()})
    create(empty_store, [row % 2 for row in range(ROWS)])
    assert "t.vocabulary()" not in capsys.readouterr().out
    # Models of scikit-learn take text.
    dataset = empty_store.get_training_dataset("d", version=1)
    assert set(dataset.matrix("train").y) == {"no", "yes"}


@pytest.mark.tensorflow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_keras_calls_refuse_text_labels(
    empty_store: FeatureStore, tmp_path: Path, library: str, subtests: Any
) -> None:
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip(library)
    inputs = keras.Input((1,), name="x")
    layer = keras.layers.Dense(2, activation="softmax")
    model = keras.Model({"x": inputs}, layer(inputs))
    model.compile("sgd", loss="sparse_categorical_crossentropy")

    def calls(reader: Any, folder: Path) -> list[Callable[[], Any]]:
        return [
            lambda: reader.checkpoint(folder, objects={}).fit(model, 1, verbose=0),
            lambda: reader.evaluate(model),
            lambda: model.fit(reader.tf_dataset(), steps_per_epoch=2, shuffle=False, verbose=0),
            lambda: model.evaluate(reader.tf_dataset(), verbose=0),
        ]

    texts = [("no", "yes")[row % 2] for row in range(ROWS)]
    dataset = create(empty_store, texts)
    for remainder in ("drop", "pad", "keep"):
        reader = dataset.reader("train", global_batch_size=16, remainder=remainder)
        for number, call in enumerate(calls(reader, tmp_path / remainder)):
            with (
                subtests.test(remainder=remainder, call=number),
                pytest.raises(UnsupportedType, match="read as bytes: 'y'") as refused,
            ):
                call()
        assert model.predict(reader.tf_dataset(), verbose=0).shape[1] == 2  # without labels
    # The hint works when it is pasted.
    arguments = refused.value.hint.removeprefix("create_training_dataset(..., ")
    pasted = eval(f"dict({arguments}", {"t": t})
    reader = create(empty_store, texts, **pasted).reader("train", global_batch_size=16)
    for call in calls(reader, tmp_path / "coded"):
        call()
    decimals = create(empty_store, pa.array([Decimal(row) for row in range(ROWS)]))
    with pytest.raises(UnsupportedType, match="read as bytes") as refused:
        decimals.reader("train", global_batch_size=16).evaluate(model)
    assert "df = featurestore.cast(df, {'y': 'float64'})" in refused.value.hint
