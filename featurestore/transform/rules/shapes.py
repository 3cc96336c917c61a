"""Rules whose output has a fixed shape: padded lists, decoded images and decoded audio."""

from __future__ import annotations

import math

import numpy as np

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonObject, MalformedJson
from featurestore.transform.audio import decode_audio
from featurestore.transform.images import (
    DTYPES,
    ENCODINGS,
    MODES,
    ORIENTATIONS,
    decode_images,
    reshape_raw_images,
)
from featurestore.transform.ops import Ops, Value
from featurestore.transform.rules.rule import Rule
from featurestore.transform.steps import Form, Step

KEEP = ("first", "last")
_DTYPES = {"number": "float32", "whole": "int64", "text": ""}


class Pad(Rule):
    """Padding and truncation of variable-length lists to a fixed length.

    Padding is at the end: 0 for numbers, and a missing value, whose code is 0, for integers and
    strings.
    """

    name = "pad"
    for_lists = True

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "list")
        assert form.item is not None
        return Form(form.item, (step.options["length"],), _DTYPES[form.item])

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        length, keep = step.options["length"], step.options["keep"]
        value_type, rows, is_item = ops.pad_lists(value.data, length, last=keep == "last")
        present = value.present
        if value_type != "number":
            if present is not None:
                is_item = is_item & present[..., None]
            return Value(value_type, rows, is_item)
        if present is not None:
            rows = ops.where(present[..., None], rows, math.nan)
        return Value("number", rows)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", minimum=1)
        if options.text("keep") not in KEEP:
            raise options.wrong_type_error("keep", "'first' or 'last'")


class DecodeImage(Rule):
    """Decoding of images to pixels of shape (height, width, channels).

    Chains of older releases lack the options "dtype" and "orientation". They still yield uint8
    pixels in the stored orientation, since models were trained on these pixels.
    """

    name = "decode_image"
    supports_graphs = False

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "binary")
        _check_one_per_row(self.name, form)
        options = step.options
        shape = (options["height"], options["width"], options["channels"])
        return Form("vector", shape, options.get("dtype", "uint8"))

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        present = _present_rows(self.name, value)
        height, width, channels = (step.options[name] for name in ("height", "width", "channels"))
        dtype = step.options.get("dtype", "uint8")
        if step.options["encoding"] == "raw":
            pixels = reshape_raw_images(
                value.data, present, shape=(height, width, channels), dtype=dtype
            )
        else:
            pixels = decode_images(
                value.data,
                present,
                height=height,
                width=width,
                channels=channels,
                dtype=dtype,
                orientation=step.options.get("orientation", "stored"),
            )
        return Value("vector", pixels)

    def takes_byte_rows(self, step: Step) -> bool:
        return bool(step.options["encoding"] == "raw")

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("height", minimum=1)
        options.number("width", minimum=1)
        if options.number("channels", minimum=1) not in MODES:
            raise MalformedJson(f"channels is not one of {list(MODES)}")
        if options.text("encoding") not in ENCODINGS:
            raise MalformedJson(f"encoding is not one of {list(ENCODINGS)}")
        if "dtype" in options and options.text("dtype") not in DTYPES:
            raise MalformedJson(f"dtype is not one of {list(DTYPES)}")
        if "orientation" in options and options.text("orientation") not in ORIENTATIONS:
            raise MalformedJson(f"orientation is not one of {list(ORIENTATIONS)}")


class DecodeAudio(Rule):
    """Decoding of audio to floats of shape (samples, channels)."""

    name = "decode_audio"
    supports_graphs = False

    def output(self, step: Step, form: Form) -> Form:
        self.check_input(form, "binary")
        _check_one_per_row(self.name, form)
        return Form("vector", (step.options["samples"], step.options["channels"]), "float32")

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        decoded = decode_audio(value.data, _present_rows(self.name, value), **step.options)
        return Value("vector", decoded)

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        for name in ("samples", "sample_rate", "channels"):
            options.number(name, minimum=1)


def _check_one_per_row(rule: str, form: Form) -> None:
    if form.shape:
        raise InvalidArgument(f"{rule}() accepts one file per row.")


def _present_rows(rule: str, value: Value) -> np.ndarray | None:
    """Return the mask of rows with a file; None if all rows have one."""
    if not isinstance(value.data, np.ndarray):
        raise InvalidArgument(
            f"{rule}() runs in readers; graphs do not support it.",
            hint="reader.tf_dataset() and reader.torch_loader() yield decoded arrays",
        )
    return None if value.present is None else np.asarray(value.present)
