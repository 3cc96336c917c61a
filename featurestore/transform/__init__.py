"""Transformations of stored features into model inputs.

A chain of steps is fitted on one split, stored with the dataset, and applied to any rows.

>>> from featurestore import transform as t
>>> {"distance": t.log1p() | t.standardize(), "carrier": t.vocabulary(max_size=100)}
{'distance': log1p() | standardize(), 'carrier': vocabulary(max_size=100, unknown=1)}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.arrow.lists import as_list
from featurestore.errors import InvalidArgument, listing
from featurestore.transform.steps import Chain, single_step

if TYPE_CHECKING:
    from featurestore.transform.fitted import Transformations

__all__ = [
    "Chain",
    "Transformations",
    "standardize",
    "min_max",
    "robust",
    "log1p",
    "clip",
    "impute",
    "quantile_bins",
    "bins",
    "vocabulary",
    "hash_bucket",
    "one_hot",
    "cyclical",
    "text_tokens",
    "decode_image",
    "decode_audio",
    "pad",
    "cast",
    "function",
]


def __getattr__(name: str) -> Any:
    # The class is imported on access, because its module imports Arrow, which defining a chain does
    # not require.
    if name == "Transformations":
        from featurestore.transform.fitted import Transformations

        return Transformations
    raise AttributeError(f"module 'featurestore.transform' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def standardize() -> Chain:
    """Subtract the mean and divide by the population standard deviation: (x - mean) / std.

    Missing values stay missing (NaN), infinities stay infinite; a constant column becomes 0.

    >>> standardize()
    standardize()
    """
    return single_step("standardize")


def min_max(low: float = 0.0, high: float = 1.0) -> Chain:
    """Scale the minimum to ``low`` and the maximum to ``high``; unseen values may exceed them.

    >>> min_max(-1, 1) | clip(-1, 1)
    min_max(low=-1.0, high=1.0) | clip(low=-1.0, high=1.0)
    """
    if not _check_finite_number("low", low) < _check_finite_number("high", high):
        raise InvalidArgument(f"low={low} is not below high={high}.")
    return single_step("min_max", low=float(low), high=float(high))


def robust() -> Chain:
    """Subtract the median and divide by the interquartile range.

    >>> robust()
    robust()
    """
    return single_step("robust")


def log1p() -> Chain:
    """Compute log(1 + x): -inf at -1, NaN below it.

    >>> log1p() | standardize()
    log1p() | standardize()
    """
    return single_step("log1p")


def clip(low: float | None = None, high: float | None = None) -> Chain:
    """Limit values, including infinities, to a range; missing values stay missing.

    >>> clip(low=0)
    clip(low=0.0)
    """
    ends = [None if end is None else _check_finite_number("clip", end) for end in (low, high)]
    if ends[0] is None and ends[1] is None:
        raise InvalidArgument("clip() needs low or high.", hint="t.clip(0, 100)")
    if None not in ends and not ends[0] <= ends[1]:  # type: ignore[operator]
        raise InvalidArgument(f"low={low} is above high={high}.")
    return single_step("clip", low=ends[0], high=ends[1])


def impute(value: float | str) -> Chain:
    """Replace missing values (null or NaN).

    Args:
        value: "mean", "median" or "most_frequent" (of ties the smallest) of the split, or a
            constant.

    >>> impute("median") | standardize()
    impute(value='median') | standardize()
    """
    if not isinstance(value, str):
        _check_finite_number("value", value)
    return single_step("impute", value=value)


def quantile_bins(bins: int) -> Chain:
    """Encode numbers by bins with about equal row counts, numbered from 1; 0 is missing.

    There are fewer bins if many rows have the same value.

    >>> quantile_bins(10)
    quantile_bins(bins=10)
    """
    return single_step("quantile_bins", bins=_check_integer("bins", bins, minimum=2))


def bins(edges: Sequence[float]) -> Chain:
    """Encode numbers by bins with fixed edges, numbered from 1; 0 is missing.

    Bin 1 is below the first edge. Each bin includes its lower edge.

    >>> bins([0, 18, 65])
    bins(edges=[0.0, 18.0, 65.0])
    """
    numbers = [_check_finite_number("edges", edge) for edge in as_list(edges) or ()]
    if not numbers or sorted(set(numbers)) != numbers:
        raise InvalidArgument(
            f"edges={edges!r:.80} are not ascending numbers.", hint="t.bins([0, 18, 65])"
        )
    return single_step("bins", edges=numbers)


def vocabulary(max_size: int | None = None, *, unknown: int = 1) -> Chain:
    """Encode strings or integers by a vocabulary in descending frequency; 0 is missing.

    Args:
        max_size: Maximum number of known values; the most frequent values are kept. None keeps all
            values of the split.
        unknown: Number of hash codes, starting at 1, for unseen values. With 0, unseen values get
            code 0, like missing values.

    >>> vocabulary(max_size=100, unknown=1)
    vocabulary(max_size=100, unknown=1)
    """
    if max_size is not None:
        _check_integer("max_size", max_size, minimum=1)
    return single_step(
        "vocabulary", max_size=max_size, unknown=_check_integer("unknown", unknown, minimum=0)
    )


def hash_bucket(buckets: int) -> Chain:
    """Encode strings or integers by hash bucket, starting at 1; 0 is missing.

    >>> hash_bucket(1000)
    hash_bucket(buckets=1000)
    """
    return single_step("hash_bucket", buckets=_check_integer("buckets", buckets, minimum=1))


def one_hot(max_size: int | None = None) -> Chain:
    """Encode values as one-hot vectors, in ascending order; missing and unseen values are zeros.

    >>> quantile_bins(4) | one_hot()
    quantile_bins(bins=4) | one_hot()
    """
    if max_size is not None:
        _check_integer("max_size", max_size, minimum=1)
    return single_step("one_hot", max_size=max_size)


def cyclical(period: float) -> Chain:
    """Compute sine and cosine of 2 pi x / period, so that hour 23 is close to hour 0.

    >>> cyclical(24)
    cyclical(period=24.0)
    """
    if not 1e-150 < _check_finite_number("period", period) < 1e150:
        raise InvalidArgument(f"period={period} is not a valid period.", hint="t.cyclical(24)")
    return single_step("cyclical", period=float(period))


def text_tokens(
    length: int, *, max_size: int | None = 20_000, unknown: int = 1, lower: bool = True
) -> Chain:
    """Encode the first words of a string as codes of shape (rows, length), padded with 0.

    Words are runs of letters, digits, "_" and non-ASCII characters. Lists of strings are encoded
    item by item: ``pad(8) | text_tokens(5)`` has the shape (rows, 8, 5).

    Args:
        length: Number of words per string.
        max_size: Maximum number of known words; the most frequent words are kept.
        unknown: Number of hash codes for unseen words.
        lower: Whether A to Z are converted to lower case.

    >>> text_tokens(32, max_size=5000)
    text_tokens(length=32, max_size=5000, unknown=1, lower=True)
    """
    if max_size is not None:
        _check_integer("max_size", max_size, minimum=1)
    return single_step(
        "text_tokens",
        length=_check_integer("length", length, minimum=1),
        max_size=max_size,
        unknown=_check_integer("unknown", unknown, minimum=0),
        lower=bool(lower),
    )


def decode_image(
    size: int | tuple[int, int],
    *,
    channels: int = 3,
    encoding: str = "file",
    dtype: str = "uint8",
    orientation: str = "exif",
) -> Chain:
    """Decode images (bytes of PNG, JPEG, WebP, BMP or GIF files) into arrays of one shape.

    Rows have the shape (height, width, channels) and are decoded by threads of the reader. Images
    of another size are resized. Missing images are zeros. Animated files yield their first frame.
    PNG files are decoded in three fifths of the time, with the same pixels, if imagecodecs is
    installed (``pip install 'featurestore[images-fast]'``). Not part of a Keras layer: a served
    model must decode images itself.

    Args:
        size: Height and width in pixels, or one number for both.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        encoding: "file" or "raw". Raw bytes are the pixels of this size, row by row; they need more
            disk space and almost no time to read.
        dtype: "uint8" scales 16-bit images to 8 bits (the high 8 bits of each value). "uint16"
            keeps the values of 16-bit gray images and multiplies 8-bit values by 257; it refuses
            16-bit color images. Raw pixels of "uint16" are little-endian.
        orientation: "exif" rotates and mirrors an image as its EXIF or XMP metadata requires;
            "stored" ignores that metadata. Raw pixels have no such metadata.

    >>> decode_image((64, 48), channels=1, dtype="uint16").steps[0].options["dtype"]
    'uint16'
    """
    from featurestore.transform.images import DTYPES, ENCODINGS, MODES, ORIENTATIONS

    height, width = (size, size) if isinstance(size, int) else size
    if channels not in MODES:
        raise InvalidArgument(f"channels={channels!r} is not one of {listing(MODES)}.")
    if encoding not in ENCODINGS:
        raise InvalidArgument(f"encoding={encoding!r} is not one of {listing(ENCODINGS)}.")
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype={dtype!r} is not one of {listing(DTYPES)}.")
    if orientation not in ORIENTATIONS:
        raise InvalidArgument(f"orientation={orientation!r} is not one of {listing(ORIENTATIONS)}.")
    return single_step(
        "decode_image",
        height=_check_integer("height", height, minimum=1),
        width=_check_integer("width", width, minimum=1),
        channels=channels,
        encoding=encoding,
        dtype=dtype,
        orientation=orientation,
    )


def decode_audio(samples: int, *, sample_rate: int, channels: int = 1) -> Chain:
    """Decode audio (bytes of WAV, FLAC, OGG or MP3 files) into arrays of floats of one shape.

    Rows have the shape (samples, channels) and the type float32, and are decoded by threads of the
    reader (``pip install 'featurestore[audio]'``). Values are between -1 and 1; integers of 8 to 24
    bits are exact. Longer files are cut, shorter ones are followed by zeros, and missing files are
    zeros. Files of another sample rate, and truncated files, are refused. Not part of a Keras
    layer: a served model must decode audio itself.

    Args:
        samples: Samples per channel, which is the sample rate times the seconds.
        sample_rate: Samples per second of all files.
        channels: Channels of all files; with 1, the mean of several channels is used.

    >>> decode_audio(16_000, sample_rate=16_000)
    decode_audio(samples=16000, sample_rate=16000, channels=1)
    """
    from featurestore.transform.audio import MAX_CHANNELS

    if channels not in range(1, MAX_CHANNELS + 1):
        raise InvalidArgument(f"channels={channels!r} is not a number from 1 to {MAX_CHANNELS}.")
    return single_step(
        "decode_audio",
        samples=_check_integer("samples", samples, minimum=1),
        sample_rate=_check_integer("sample_rate", sample_rate, minimum=1),
        channels=channels,
    )


def pad(length: int, *, keep: str = "first") -> Chain:
    """Pad or truncate variable-length lists to one length, as the first step of their chain.

    Padding follows the items: 0 for numbers, a missing value for strings and integers, which has
    code 0. Later steps are fitted on all items.

    Args:
        length: Number of items per list.
        keep: Which items of longer lists to keep: "first" or "last".

    >>> pad(8, keep="last") | vocabulary(max_size=100)
    pad(length=8, keep='last') | vocabulary(max_size=100, unknown=1)
    """
    from featurestore.transform.rules.shapes import KEEP

    if keep not in KEEP:
        raise InvalidArgument(f"keep={keep!r} is not one of {listing(KEEP)}.")
    return single_step("pad", length=_check_integer("length", length, minimum=1), keep=keep)


def cast(dtype: str) -> Chain:
    """Set the type of the result: "float32" (the default), "float64", "int32" or "int64".

    Numbers are truncated towards 0 and limited to the range of the type; a missing integer is 0.

    >>> clip(0, 100) | cast("int32")
    clip(low=0.0, high=100.0) | cast(dtype='int32')
    """
    from featurestore.transform.steps import DTYPES

    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype={dtype!r} is not one of {listing(DTYPES)}.")
    return single_step("cast", dtype=dtype)


def function(fn: Callable[..., Any], *, fitted: Callable[..., Any] | None = None) -> Chain:
    """Apply a Python function to the values of a batch.

    The function is not stored: files have only the hash of its source. A program that reads the
    dataset registers it by calling ``t.function(fn)``; a function with another source is refused.

    Args:
        fn: Function of an array of a batch (float64 with NaN, or str with None) that returns a
            number, or a vector of fixed length, for each value.
        fitted: Function of the distinct values of the split (without missing ones) and their
            counts. It returns JSON, which is stored and passed to ``fn`` as second argument.

    >>> def above(values, limit):
    ...     return values > limit
    >>> def average(values, rows):
    ...     return float((values * rows).sum() / rows.sum())
    >>> chain = function(above, fitted=average)
    """
    from featurestore.transform.rules.functions import register_function

    return Chain((register_function(fn, fitted),))


def _check_finite_number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(f"{argument}={value!r} is not a finite number.")
    return float(value)


def _check_integer(argument: str, value: object, *, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InvalidArgument(f"{argument}={value!r} is not an integer of at least {minimum}.")
    return value
