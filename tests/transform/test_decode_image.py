"""Decoded images are equal for every file format and reader."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.store import FeatureStore
from featurestore.transform.images import decode_images, reshape_raw_images

Image = pytest.importorskip("PIL.Image")

ROWS = 150


def encoded(pixels: Any, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


@pytest.fixture(scope="module")
def pixels() -> Any:
    return np.random.default_rng(0).integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)


def make(folder: Path, cells: list[bytes | None], data_format: str, **options: Any) -> Any:
    store = featurestore.connect(folder)
    rows = pa.table({"id": range(len(cells)), "image": pa.array(cells, pa.binary())})
    return store.create_training_dataset(
        rows,
        "images",
        features=["image"],
        label="id",
        key="id",
        data_format=data_format,
        progress=False,
        transformations={"image": t.decode_image((8, 6), **options)},
    )


@pytest.mark.parametrize("encoding", ["file", "raw"])
@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_reader_decodes_images_exactly(
    tmp_path: Path, pixels: Any, data_format: str, encoding: str
) -> None:
    encode = encoded if encoding == "file" else np.ndarray.tobytes
    dataset = make(tmp_path, [encode(image) for image in pixels], data_format, encoding=encoding)
    reader = dataset.reader("train", global_batch_size=70, remainder="pad", seed=1)
    ids = []
    for batch in reader.batches():
        assert batch["image"].dtype == np.uint8
        assert batch["image"].shape == (70, 8, 6, 3)
        real = batch["sample_weight"] > 0
        assert (batch["image"][real] == pixels[batch["id"][real]]).all()
        assert not batch["image"][~real].any()
        ids += batch["id"][real].tolist()
    assert sorted(ids) == list(range(ROWS))
    raw = dataset.reader("train", global_batch_size=70, transformed=False)
    assert next(raw.batches())["image"].dtype == object


@pytest.mark.tensorflow
def test_tf_dataset_decodes_same_pixels(tmp_path: Path, pixels: Any) -> None:
    pytest.importorskip("tensorflow")
    dataset = make(tmp_path, [encoded(image) for image in pixels], "tfrecord")
    reader = dataset.reader("train", global_batch_size=50)
    batches = zip(reader.tf_dataset(), reader.batches(), strict=True)
    for (features, _), batch in batches:
        assert features["image"].shape == (50, 8, 6, 3)
        assert (features["image"].numpy() == batch["image"]).all()
    with pytest.raises(InvalidArgument, match="decode images"):
        dataset.preprocessor("keras")


def test_decode_images_resizes_and_fills_missing(pixels: Any) -> None:
    large = np.full((32, 24, 3), 200, np.uint8)
    cells = np.array([encoded(large), encoded(pixels[0]), b"", encoded(large, "JPEG")], object)
    present = np.array([True, False, True, True])
    actual = decode_images(cells, present, height=8, width=6, channels=1)
    assert actual.shape == (4, 8, 6, 1)
    assert (actual[0] == 200).all()
    assert not actual[1:3].any()
    assert abs(actual[3].astype(int) - 200).max() <= 2


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_decode_images_imagecodecs_equals_pillow(
    monkeypatch: pytest.MonkeyPatch, pixels: Any, channels: int
) -> None:
    pytest.importorskip("imagecodecs")
    random = np.random.default_rng(channels)
    image = np.squeeze(random.integers(0, 256, (8, 6, channels), dtype=np.uint8))
    content = encoded(image)
    damaged = bytearray(content)
    damaged[50] ^= 255
    cells = [
        content,
        content + b"more",
        content[:60],
        content[:-20],
        bytes(damaged),
        encoded(pixels[0]),
    ]
    cells += [encoded(image[:4]), encoded(image, "BMP" if channels != 4 else "WEBP")]

    def decoded(cell: bytes) -> Any:
        array = np.array([cell, b""], dtype=object)
        try:
            return decode_images(array, None, height=8, width=6, channels=channels).tolist()
        except InvalidArgument:
            return "refused"

    expected = [decoded(cell) for cell in cells]
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    assert expected == [decoded(cell) for cell in cells]
    assert expected[0] == [
        image.reshape(8, 6, channels).tolist(),
        np.zeros((8, 6, channels)).tolist(),
    ]


def test_decode_images_invalid_bytes_raises(pixels: Any) -> None:
    damaged = encoded(pixels[1])[:60]
    for wrong in (b"no image", damaged):
        cells = np.array([encoded(pixels[0]), wrong], object)
        with pytest.raises(InvalidArgument, match=r"Row 1 of the batch cannot be decoded"):
            decode_images(cells, None, height=8, width=6, channels=3)


def test_raw_images_wrong_size_raises() -> None:
    cells = np.array([b"abcd", b"abc"], object)
    with pytest.raises(InvalidArgument, match=r"Row 1 .* has 3 bytes.* \(2, 2, 1\) have 4"):
        reshape_raw_images(cells, None, shape=(2, 2, 1))
    actual = reshape_raw_images(cells, np.array([True, False]), shape=(2, 2, 1))
    assert actual.reshape(2, 4).tolist() == [list(b"abcd"), [0] * 4]
    with pytest.raises(InvalidArgument, match="encoding='png'"):
        t.decode_image(8, encoding="png")


def test_decode_image_invalid_column_or_options_raises(empty_store: FeatureStore) -> None:
    rows = pa.table({"text": ["a", "b"], "y": [0, 1]})
    with pytest.raises(InvalidArgument, match=r"decode_image\(\) accepts bytes, not strings"):
        empty_store.create_training_dataset(
            rows, "texts", label="y", transformations={"text": t.decode_image(8)}
        )
    with pytest.raises(InvalidArgument, match="channels=2"):
        t.decode_image(8, channels=2)


@pytest.mark.parametrize("shuffle", [True, False])
def test_reader_raw_images_with_nulls_and_padding(
    tmp_path: Path, pixels: Any, shuffle: bool
) -> None:
    cells = [None if row % 7 == 0 else image.tobytes() for row, image in enumerate(pixels)]
    dataset = make(tmp_path, cells, "tfrecord", encoding="raw")
    options = {"global_batch_size": 64, "remainder": "pad", "nulls": "mask", "shuffle": shuffle}
    reader = dataset.reader("train", **options)
    image_count = 0
    for batch in (*reader.batches(0), *reader.batches(1)):
        for row, image, is_present, weight in zip(
            batch["id"], batch["image"], batch["image_present"], batch["sample_weight"], strict=True
        ):
            expected = is_present and weight > 0
            assert expected == (weight > 0 and row % 7 != 0)
            assert (image == (pixels[row] if expected else 0)).all()
            image_count += expected
    assert image_count == 2 * sum(cell is not None for cell in cells)


@pytest.mark.tensorflow
def test_tf_dataset_large_raw_images_equal_stored(empty_store: FeatureStore) -> None:
    large = np.random.default_rng(1).integers(0, 256, (40, 128, 96, 3), dtype=np.uint8)
    rows = pa.table({"id": range(40), "image": [image.tobytes() for image in large]})
    chains = {"image": t.decode_image((128, 96), encoding="raw")}
    dataset = empty_store.create_training_dataset(
        rows, "large", features=["image"], label="id", progress=False, transformations=chains
    )
    for remainder, sizes in (("drop", [32]), ("keep", [32, 8]), ("pad", [32, 32])):
        reader = dataset.reader("train", global_batch_size=32, remainder=remainder)
        assert reader.plan.steps_at_once(1) == 1
        actual = [len(element[1]) for element in reader.tf_dataset()]
        assert actual == sizes
        for element in reader.tf_dataset():
            weights = np.ones(len(element[1])) if len(element) < 3 else element[2].numpy()
            for image, row, weight in zip(
                element[0]["image"].numpy(), element[1].numpy(), weights, strict=True
            ):
                assert (image == (large[row] if weight else 0)).all()
