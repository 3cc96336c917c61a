"""Decoded audio is equal to the samples in the files, and no file ends early in silence."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featurestore
from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.store import FeatureStore
from featurestore.transform.audio import decode_audio

soundfile = pytest.importorskip("soundfile")
RATE = 8000


def wav(integers: Any, width: int, *, rate: int = RATE) -> bytes:
    """Return a WAV file of integers of shape (samples, channels) by Python's own module."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(integers.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        # WAV files of one byte have unsigned samples.
        plain = [int(value) + (128 if width == 1 else 0) for value in integers.ravel()]
        cells = [value.to_bytes(width, "little", signed=width > 1) for value in plain]
        file.writeframes(b"".join(cells))
    return buffer.getvalue()


def encoded(values: Any, file_format: str, subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, values, RATE, format=file_format, subtype=subtype)
    return buffer.getvalue()


def decode(*files: bytes, samples: int = 100, channels: int = 1, present: Any = None) -> Any:
    cells = np.array([*files, b""], object)[:-1]
    return decode_audio(cells, present, samples=samples, sample_rate=RATE, channels=channels)


def test_integers_of_every_width_are_decoded_exactly() -> None:
    random = np.random.default_rng(0)
    for width in (1, 2, 3):
        limit = 2 ** (8 * width - 1)
        for channels in (1, 2, 6):
            for length in (1, 99, 100, 101, 250):
                integers = random.integers(-limit, limit, (length, channels))
                integers[0] = -limit
                expected = [[int(value) / limit for value in row] for row in integers[:100]]
                expected += [[0.0] * channels] * (100 - len(expected))
                (decoded,) = decode(wav(integers, width), channels=channels)
                assert decoded.dtype == np.float32
                assert decoded.tolist() == expected
                (mono,) = decode(wav(integers, width))
                means = [[float(np.float32(sum(row) / channels))] for row in expected]
                assert mono.tolist() == means


def test_formats_have_samples_of_wav() -> None:
    integers = (np.sin(np.arange(4000) / 20) * 20_000).astype(np.int16).reshape(-1, 1)
    (expected,) = decode(wav(integers, 2), samples=4000)
    expected = expected.copy()  # the buffer is used again
    (flac,) = decode(encoded(integers, "FLAC"), samples=4000)
    assert (flac == expected).all()
    for file_format, subtype in (("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)):
        (lossy,) = decode(encoded(integers, file_format, subtype), samples=4000)
        assert np.abs(lossy - expected).max() < 0.1, file_format


def test_missing_files_are_zeros() -> None:
    content = wav(np.full((100, 1), 64), 1)
    decoded = decode(content, b"", content, present=np.array([True, True, False]))
    assert decoded[:, :, 0].tolist() == [[0.5] * 100, [0.0] * 100, [0.0] * 100]


def test_truncated_files_are_refused(subtests: pytest.Subtests) -> None:
    integers = np.random.default_rng(1).integers(-9999, 9999, (3000, 1)).astype(np.int16)
    contents = {
        "wav": wav(integers, 2),
        "flac": encoded(integers, "FLAC"),
        "vorbis": encoded(integers, "OGG", "VORBIS"),
        "opus": encoded(integers, "OGG", "OPUS"),
        "mp3": encoded(integers, "MP3"),
    }
    for name, content in contents.items():
        with subtests.test(name):
            for cut in np.linspace(1, len(content) - 200, 20).astype(int):
                with pytest.raises(InvalidArgument, match="Row 1 of the batch cannot be decoded"):
                    decode(content, content[:cut], samples=3000)


def test_other_files_are_refused() -> None:
    content = wav(np.zeros((10, 2), int), 2)
    other_rate = wav(np.zeros((10, 2), int), 2, rate=44_100)
    with pytest.raises(InvalidArgument, match=r"has 44,100 samples per second, not 8,000"):
        decode(other_rate)
    with pytest.raises(InvalidArgument, match="has 2 channels, not 3"):
        decode(content, channels=3)
    with pytest.raises(InvalidArgument, match="channels=33 is not a number from 1 to 32"):
        t.decode_audio(8, sample_rate=RATE, channels=33)
    with pytest.raises(InvalidArgument, match="declares 33 channels, the limit is 32"):
        decode(wav(np.zeros((10, 33), int), 2))
    # libsndfile also reads formats that are not trusted.
    for wrong in (b"no audio", encoded(np.zeros(10), "AU"), encoded(np.zeros(10), "AIFF")):
        with pytest.raises(InvalidArgument, match=r"unknown format.*\n.*WAV, FLAC"):
            decode(wrong)


@pytest.mark.parametrize("data_format", ["tfrecord", "parquet"])
def test_reader_decodes_audio(tmp_path: Path, data_format: str) -> None:
    integers = np.random.default_rng(2).integers(-(2**15), 2**15, (150, 40, 2))
    rows = pa.table({"id": range(150), "sound": [wav(each, 2) for each in integers]})
    dataset = featurestore.connect(tmp_path).create_training_dataset(
        rows,
        "sounds",
        features=["sound"],
        label="id",
        key="id",
        data_format=data_format,
        progress=False,
        transformations={"sound": t.decode_audio(40, sample_rate=RATE, channels=2)},
    )
    ids = []
    for batch in dataset.reader("train", global_batch_size=50, seed=1).batches():
        assert batch["sound"].shape == (50, 40, 2)
        assert (batch["sound"] * 2**15 == integers[batch["id"]]).all()
        ids += batch["id"].tolist()
    assert sorted(ids) == list(range(150))


def test_decode_audio_of_texts_is_refused(empty_store: FeatureStore) -> None:
    rows = pa.table({"text": ["a", "b"], "y": [0, 1]})
    with pytest.raises(InvalidArgument, match=r"decode_audio\(\) accepts bytes, not strings"):
        empty_store.create_training_dataset(
            rows,
            "texts",
            label="y",
            transformations={"text": t.decode_audio(8, sample_rate=RATE)},
        )
