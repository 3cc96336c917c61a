"""Decoded pixels do not depend on file format, image mode or decoder."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from featurestore import FeatureStore
from featurestore import transform as t
from featurestore.errors import InvalidArgument
from featurestore.transform.fitted import RULES
from featurestore.transform.images import decode_images, reshape_raw_images
from featurestore.transform.steps import Step

Image = pytest.importorskip("PIL.Image")

HEIGHT, WIDTH = 8, 6
LOSSLESS = [
    *product(("1", "L", "P"), ("PNG", "BMP", "GIF")),
    ("LA", "PNG"),
    # A palette whose entries have alpha values.
    ("PA", "PNG"),
    *product(("RGB",), ("PNG", "BMP", "WEBP")),
    *product(("RGBA",), ("PNG", "WEBP")),
]
LOSSY = [("L", "JPEG"), ("RGB", "JPEG"), ("RGB", "WEBP"), ("CMYK", "JPEG")]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
DECODERS = ("pillow", "imagecodecs")


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "imagecodecs":
        pytest.importorskip("imagecodecs")
    else:
        monkeypatch.setitem(sys.modules, "imagecodecs", None)
    return str(request.param)


def image_of(mode: str, seed: int = 0) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
    if mode == "CMYK":
        return Image.fromarray(pixels, "CMYK")
    if mode == "PA":
        return Image.fromarray(pixels, "RGBA").quantize(64)
    return Image.fromarray(pixels, "RGBA").convert("RGB" if mode == "P" else mode).convert(mode)


def saved(image: Any, file_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    # WebP drops the color of transparent pixels without "exact".
    if file_format == "WEBP":
        options = {"lossless": True, "exact": True, **options}
    image.save(file, file_format, **options)
    return file.getvalue()


def decode(cell: bytes, size: tuple[int, int] = (HEIGHT, WIDTH), **options: Any) -> Any:
    cells = np.array([cell, b""], dtype=object)[:1]
    options = {"channels": 1, **options}
    return np.array(decode_images(cells, None, height=size[0], width=size[1], **options)[0])


def gray16(values: Any) -> Any:
    return Image.fromarray(np.asarray(values, dtype=np.uint16))


def png16(samples: Any, color_type: int, more: tuple[bytes, bytes] | None = None) -> bytes:
    """Write 16-bit samples of shape (height, width, channels) as PNG, with an additional chunk."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    height, width = samples.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in samples)
    body = chunk(b"IHDR", header)
    if more is not None:
        body += chunk(*more)
    body += chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_lossless_images_of_every_mode_decode_exactly(
    decoder: str, subtests: pytest.Subtests
) -> None:
    for (mode, file_format), channels in product(LOSSLESS, MODES):
        with subtests.test(f"{mode} {file_format}", channels=channels):
            image = image_of(mode)
            expected = np.asarray(image.convert(MODES[channels])).reshape(HEIGHT, WIDTH, channels)
            cell = saved(image, file_format)
            assert (decode(cell, channels=channels) == expected).all()
            deep = decode(cell, channels=channels, dtype="uint16")
            assert deep.dtype == np.uint16
            assert (deep == expected.astype(int) * 257).all()
            small = decode(cell, (4, 3), channels=channels)
            small_deep = decode(cell, (4, 3), channels=channels, dtype="uint16")
            assert (small_deep == small.astype(int) * 257).all()


def test_lossy_images_decode_equally_by_both_decoders(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("imagecodecs")
    for (mode, file_format), channels in product(LOSSY, MODES):
        with subtests.test(f"{mode} {file_format}", channels=channels):
            cell = saved(image_of(mode), file_format)
            first = decode(cell, channels=channels)
            with monkeypatch.context() as patched:
                patched.setitem(sys.modules, "imagecodecs", None)
                assert (decode(cell, channels=channels) == first).all()
            assert len(np.unique(first)) > 10


def test_16_bit_gray_is_scaled_without_clipping(decoder: str, subtests: pytest.Subtests) -> None:
    values = np.linspace(0, 65535, HEIGHT * WIDTH).astype(np.uint16).reshape(HEIGHT, WIDTH)
    cell = saved(gray16(values), "PNG")
    for channels in (1, 3, 4):
        with subtests.test(channels=channels):
            colors = min(channels, 3)
            scaled = decode(cell, channels=channels)
            assert (scaled[..., :colors] == (values >> 8)[..., None]).all()
            exact = decode(cell, channels=channels, dtype="uint16")
            assert (exact[..., :colors] == values[..., None]).all()
            if channels == 4:
                assert (scaled[..., 3] == 255).all()
                assert (exact[..., 3] == 65535).all()
            small = decode(cell, (4, 3), channels=channels, dtype="uint16")
            assert (decode(cell, (4, 3), channels=channels) == small >> 8).all()
            expected = values.reshape(4, 2, 3, 2).mean(axis=(1, 3))
            assert abs(small[..., 0] - expected).max() < 65535 / HEIGHT


def test_16_bit_transparent_gray_has_alpha(decoder: str) -> None:
    values = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 1000
    # Older versions of Pillow do not write this chunk for 16-bit gray.
    cell = png16(values[..., None], 0, (b"tRNS", struct.pack(">H", 5000)))
    alpha = decode(cell, channels=4)[..., 3]
    assert (alpha == np.where(values == 5000, 0, 255)).all()


def test_png_transparency_chunk_keeps_colors(decoder: str, subtests: pytest.Subtests) -> None:
    for mode, transparent in (("L", 7), ("RGB", (1, 2, 3))):
        with subtests.test(mode):
            image = image_of(mode)
            image.putpixel((2, 1), transparent)
            cell = saved(image, "PNG", transparency=transparent)
            channels = len(mode)
            expected = np.asarray(image).reshape(HEIGHT, WIDTH, channels)
            assert (decode(cell, channels=channels) == expected).all()
            assert decode(cell, channels=4)[1, 2, 3] == 0


def test_16_bit_colors_are_scaled_and_refused_as_uint16(
    decoder: str, subtests: pytest.Subtests
) -> None:
    for color_type, samples in ((2, 3), (4, 2), (6, 4)):
        with subtests.test(color_type=color_type, samples=samples):
            shape = (HEIGHT, WIDTH, samples)
            values = np.random.default_rng(color_type).integers(0, 65536, shape, dtype=np.uint16)
            cell = png16(values, color_type)
            pixels = decode(cell, channels=4)
            if samples == 2:
                values = values[..., [0, 0, 0, 1]]
            assert (pixels[..., : values.shape[-1]] == values >> 8).all()
            with pytest.raises(InvalidArgument, match=r"Row 0 .* 16-bit colors") as refusal:
                decode(cell, channels=3, dtype="uint16")
            assert 't.decode_image(64, dtype="uint8")' in str(refusal.value)


def stored_with(image: Any, file_format: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, file_format, exif=exif)


def test_exif_orientation_is_applied_unless_stored(decoder: str, subtests: pytest.Subtests) -> None:
    from PIL import ImageOps

    gray = gray16(np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) * 1000)
    for file_format, orientation in product(("PNG", "JPEG", "WEBP", "gray16"), range(1, 9)):
        with subtests.test(file_format, orientation=orientation):
            image = gray if file_format == "gray16" else image_of("RGB")
            cell = stored_with(image, file_format.replace("gray16", "PNG"), orientation)
            with Image.open(io.BytesIO(cell)) as file:
                expected = np.asarray(ImageOps.exif_transpose(file))
                stored_pixels = np.asarray(file)
            if file_format == "gray16":
                expected, stored_pixels = expected[..., None] >> 8, stored_pixels[..., None] >> 8
            channels = stored_pixels.shape[2]
            upright = decode(cell, expected.shape[:2], channels=channels)
            assert (upright == expected).all()
            as_stored = decode(cell, (HEIGHT, WIDTH), channels=channels, orientation="stored")
            assert (as_stored == stored_pixels).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_malformed_exif_leaves_pixels_as_stored(decoder: str, subtests: pytest.Subtests) -> None:
    image = image_of("RGB")
    for exif in (b"Exif\0\0damaged", b"II*\0", b"", b"Exif\0\0MM\0*\0\0\0\x08\0\x01"):
        with subtests.test(exif=exif):
            cell = saved(image, "PNG", exif=exif)
            assert (decode(cell, channels=3) == np.asarray(image)).all()


def test_orientation_in_png_text_is_applied(decoder: str, subtests: pytest.Subtests) -> None:
    from PIL import PngImagePlugin

    exif = Image.Exif()
    exif[0x0112] = 3
    body = exif.tobytes()
    image = image_of("RGB")
    for keyword, is_compressed in product(
        ("Raw profile type exif", "XML:com.adobe.xmp"), (False, True)
    ):
        with subtests.test(keyword, is_compressed=is_compressed):
            chunks = PngImagePlugin.PngInfo()
            chunks.add_text("Software", "camera")
            if keyword.startswith("Raw"):
                profile = f"\nexif\n{len(body):8}\n{body.hex()}\n"
                chunks.add_text(keyword, profile, zip=is_compressed)
            else:
                chunks.add_itxt(keyword, '<x tiff:Orientation="3"/>', zip=is_compressed)
            cell = saved(image, "PNG", pnginfo=chunks)
            assert (decode(cell, channels=3) == np.asarray(image)[::-1, ::-1]).all()
            assert (decode(cell, channels=3, orientation="stored") == np.asarray(image)).all()


def test_animated_image_decodes_first_frame(decoder: str, subtests: pytest.Subtests) -> None:
    frames = [image_of("RGB", seed).quantize(64).convert("RGB") for seed in range(3)]
    for file_format in ("GIF", "WEBP", "PNG"):
        with subtests.test(file_format):
            cell = saved(frames[0], file_format, save_all=True, append_images=frames[1:])
            with Image.open(io.BytesIO(cell)) as file:
                assert file.n_frames == 3
            assert (decode(cell, channels=3) == np.asarray(frames[0])).all()


def test_reader_decodes_16_bit_images(empty_store: FeatureStore, subtests: pytest.Subtests) -> None:
    values = np.random.default_rng(3).integers(0, 65536, (20, HEIGHT, WIDTH), dtype=np.uint16)
    encoded_cells = {
        "file": [saved(gray16(image), "PNG") for image in values],
        "raw": [image.tobytes() for image in values],
    }
    for data_format, (encoding, cells) in product(("tfrecord", "parquet"), encoded_cells.items()):
        with subtests.test(data_format, encoding=encoding):
            decode_image = t.decode_image(
                (HEIGHT, WIDTH), channels=1, encoding=encoding, dtype="uint16"
            )
            dataset = empty_store.create_training_dataset(
                pa.table({"id": range(20), "image": pa.array(cells, pa.binary())}),
                f"scans_{data_format}_{encoding}",
                features=["image"],
                label="id",
                data_format=data_format,
                progress=False,
                transformations={"image": decode_image},
            )
            reader = dataset.reader("train", global_batch_size=24, remainder="pad", seed=1)
            batch = next(reader.batches())
            assert batch["image"].dtype == np.uint16
            real = batch["sample_weight"] > 0
            assert real.sum() == 20
            assert (batch["image"][real][..., 0] == values[batch["id"][real]]).all()
            assert not batch["image"][~real].any()


def test_raw_16_bit_rows_of_bytes_are_little_endian() -> None:
    rows = np.array([[1, 0, 0, 1], [255, 255, 0, 0]], dtype=np.uint8)
    pixels = reshape_raw_images(rows, None, shape=(1, 2, 1), dtype="uint16")
    assert pixels.reshape(2, 2).tolist() == [[1, 256], [65535, 0]]
    with pytest.raises(InvalidArgument, match=r"has 4 bytes.* have 2"):
        reshape_raw_images(rows, None, shape=(1, 1, 1), dtype="uint16")


def test_steps_without_new_options_keep_stored_orientation() -> None:
    from featurestore.transform.ops import NumpyOps, Value

    image = image_of("RGB")
    cells = np.array([stored_with(image, "PNG", 3), b""], dtype=object)
    options = {"height": HEIGHT, "width": WIDTH, "channels": 3, "encoding": "file"}
    step = Step("decode_image", options)
    pixels = RULES["decode_image"].apply(NumpyOps(), step, Value("binary", cells)).data
    assert pixels.dtype == np.uint8
    assert (pixels[0] == np.asarray(image)).all()


def test_decode_image_unknown_options_raise(subtests: pytest.Subtests) -> None:
    for name, value in (("dtype", "float32"), ("orientation", "left")):
        with subtests.test(name), pytest.raises(InvalidArgument, match=f"{name}="):
            t.decode_image(8, **{name: value})
