"""Transformations of stored features into what models take: fitted on one split, kept, applied.

>>> from featurestore import transform as t
>>> {"distance": t.log1p() | t.standardize(), "carrier": t.vocabulary(max_size=100)}
{'distance': log1p() | standardize(), 'carrier': vocabulary(max_size=100, unknown=1)}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, listing
from featurestore.transform.steps import Chain, one

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
    "pad",
    "cast",
    "function",
]


def __getattr__(name: str) -> Any:
    if name == "Transformations":
        from featurestore.transform.fitted import Transformations

        return Transformations
    raise AttributeError(f"module 'featurestore.transform' has no attribute {name!r}")


def standardize() -> Chain:
    """Take the mean away and divide by the standard deviation (with n): (x - mean) / std.

    Missing stays missing (NaN), infinities stay infinite; a constant column becomes 0.

    >>> standardize()
    standardize()
    """
    return one("standardize")


def min_max(low: float = 0.0, high: float = 1.0) -> Chain:
    """Bring the smallest value to ``low`` and the largest to ``high``; others go on beyond.

    >>> min_max(-1, 1) | clip(-1, 1)
    min_max(low=-1.0, high=1.0) | clip(low=-1.0, high=1.0)
    """
    if not _number("low", low) < _number("high", high):
        raise InvalidArgument(f"low={low} is not below high={high}.")
    return one("min_max", low=float(low), high=float(high))


def robust() -> Chain:
    """Take the median away and divide by the distance of the quartiles.

    >>> robust()
    robust()
    """
    return one("robust")


def log1p() -> Chain:
    """Take log(1 + x): -inf at -1, NaN below it.

    >>> log1p() | standardize()
    log1p() | standardize()
    """
    return one("log1p")


def clip(low: float | None = None, high: float | None = None) -> Chain:
    """Put the ends of a range in place of values beyond it; infinities too, missing values not.

    >>> clip(low=0)
    clip(low=0.0)
    """
    ends = [None if end is None else _number("clip", end) for end in (low, high)]
    if ends[0] is None and ends[1] is None:
        raise InvalidArgument("clip() has no end.", hint="t.clip(0, 100)")
    if None not in ends and not ends[0] <= ends[1]:  # type: ignore[operator]
        raise InvalidArgument(f"low={low} is above high={high}.")
    return one("clip", low=ends[0], high=ends[1])


def impute(value: float | str) -> Chain:
    """Put a value where one is missing (null or NaN).

    Args:
        value: "mean", "median" or "most_frequent" (of equals the smallest) of the split, or the
            value itself.

    >>> impute("median") | standardize()
    impute(value='median') | standardize()
    """
    if not isinstance(value, str):
        _number("value", value)
    return one("impute", value=value)


def quantile_bins(bins: int) -> Chain:
    """Give the number of the bin, from 1, of bins that hold about as many rows each; 0 is missing.

    Where many rows have one value there are fewer bins.

    >>> quantile_bins(10)
    quantile_bins(bins=10)
    """
    return one("quantile_bins", bins=_whole("bins", bins, least=2))


def bins(edges: Sequence[float]) -> Chain:
    """Give the number of the bin: 1 below the first edge, a value on an edge above it; 0 is missing.

    >>> bins([0, 18, 65])
    bins(edges=[0.0, 18.0, 65.0])
    """
    numbers = [_number("edges", edge) for edge in edges]
    if not numbers or sorted(set(numbers)) != numbers:
        raise InvalidArgument(f"edges={list(edges)} do not ascend.", hint="t.bins([0, 18, 65])")
    return one("bins", edges=numbers)


def vocabulary(max_size: int | None = None, *, unknown: int = 1) -> Chain:
    """Give the code of a known text or whole number, the most frequent first; 0 is missing.

    Args:
        max_size: How many values are known at most: the most frequent; None: all of the split.
        unknown: How many codes, from 1 on, unseen values share by their hash; with 0 they have
            code 0, as missing ones.

    >>> vocabulary(max_size=100, unknown=1)
    vocabulary(max_size=100, unknown=1)
    """
    if max_size is not None:
        _whole("max_size", max_size, least=1)
    return one("vocabulary", max_size=max_size, unknown=_whole("unknown", unknown, least=0))


def hash_bucket(buckets: int) -> Chain:
    """Give the bucket, from 1, of the hash of a text or whole number; 0 is missing.

    >>> hash_bucket(1000)
    hash_bucket(buckets=1000)
    """
    return one("hash_bucket", buckets=_whole("buckets", buckets, least=1))


def one_hot(max_size: int | None = None) -> Chain:
    """Give 1 at the position of a value, in ascending order, 0 elsewhere; missing and unseen: all 0.

    >>> quantile_bins(4) | one_hot()
    quantile_bins(bins=4) | one_hot()
    """
    if max_size is not None:
        _whole("max_size", max_size, least=1)
    return one("one_hot", max_size=max_size)


def cyclical(period: float) -> Chain:
    """Give sine and cosine of 2 pi x / period: hour 23 lies beside hour 0.

    >>> cyclical(24)
    cyclical(period=24.0)
    """
    if not 1e-150 < _number("period", period) < 1e150:
        raise InvalidArgument(f"period={period} is no period.", hint="t.cyclical(24)")
    return one("cyclical", period=float(period))


def text_tokens(
    length: int, *, max_size: int | None = 20_000, unknown: int = 1, lower: bool = True
) -> Chain:
    """Give the codes of the first words of a text, 0 behind the last: shape (rows, length).

    Words are runs of letters, digits, "_" and of all that is not ASCII. Of lists of texts those of
    each item: ``pad(8) | text_tokens(5)`` gives (rows, 8, 5).

    Args:
        length: How many words of a text are read.
        max_size: How many words are known at most: the most frequent.
        unknown: How many codes unseen words share by their hash.
        lower: Whether A to Z are read as a to z.

    >>> text_tokens(32, max_size=5000)
    text_tokens(length=32, max_size=5000, unknown=1, lower=True)
    """
    if max_size is not None:
        _whole("max_size", max_size, least=1)
    return one(
        "text_tokens",
        length=_whole("length", length, least=1),
        max_size=max_size,
        unknown=_whole("unknown", unknown, least=0),
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

    Rows have the shape (height, width, channels) and are decoded in threads where rows are read.
    Images of another size are resized. Missing images are zeros. Animated files yield their first
    frame. PNG files are decoded in three fifths of the time, with the same pixels, where
    imagecodecs is installed (``pip install 'featurestore[images-fast]'``). Not part of a Keras
    layer: what serves a model decodes for itself.

    Args:
        size: Height and width in pixels; one number for both.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        encoding: "file" or "raw": then the bytes are the pixels of this size, row by row, which
            take more place in files and nearly no time to read.
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
    return one(
        "decode_image",
        height=_whole("height", height, least=1),
        width=_whole("width", width, least=1),
        channels=channels,
        encoding=encoding,
        dtype=dtype,
        orientation=orientation,
    )


def pad(length: int, *, keep: str = "first") -> Chain:
    """Give lists of varying length one length, as the first step of their chain.

    What fills up stands behind the items: 0 among numbers, a missing value among texts and whole
    numbers, which is 0 in every code. The steps behind it are fitted on all items.

    Args:
        length: How many items of a list are kept.
        keep: Which ones of longer lists: "first" or "last".

    >>> pad(8, keep="last") | vocabulary(max_size=100)
    pad(length=8, keep='last') | vocabulary(max_size=100, unknown=1)
    """
    from featurestore.transform.rules.lists import KEEP

    if keep not in KEEP:
        raise InvalidArgument(f"keep={keep!r} is not one of {listing(KEEP)}.")
    return one("pad", length=_whole("length", length, least=1), keep=keep)


def cast(dtype: str) -> Chain:
    """Say the type of the result: "float32" (as without it), "float64", "int32" or "int64".

    Numbers are cut towards 0 and kept within the type; a missing whole number is 0.

    >>> clip(0, 100) | cast("int32")
    clip(low=0.0, high=100.0) | cast(dtype='int32')
    """
    from featurestore.transform.forms import DTYPES

    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype={dtype!r} is not one of {listing(DTYPES)}.")
    return one("cast", dtype=dtype)


def function(fn: Callable[..., Any], *, fitted: Callable[..., Any] | None = None) -> Chain:
    """Apply a Python function to the values of a batch.

    The function is not stored: files hold the hash of its source. A program that reads the dataset
    names it by calling ``t.function(fn)`` itself, and a function of another source is refused.

    Args:
        fn: Gets an array of a batch (float64 with NaN, or str with None) and returns a number, or
            an equally long row of numbers, for each value.
        fitted: Gets the different values of the split (missing ones are left out) and the rows of
            each, and returns JSON, which is stored and which ``fn`` gets as its second argument.

    >>> def above(values, limit):
    ...     return values > limit
    >>> def average(values, rows):
    ...     return float((values * rows).sum() / rows.sum())
    >>> chain = function(above, fitted=average)
    """
    from featurestore.transform.rules.functions import named

    return Chain((named(fn, fitted),))


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(f"{argument}={value!r} is no number.")
    return float(value)


def _whole(argument: str, value: object, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{argument}={value!r} is not a whole number from {least}.")
    return value
