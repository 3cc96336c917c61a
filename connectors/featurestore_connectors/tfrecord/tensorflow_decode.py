"""Decoding of records inside a TensorFlow graph: slices of the byte matrix and bitcasts, no parsing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import missing_extra
from featurestore.model.types import numpy_type
from featurestore_connectors.tfrecord import wire
from featurestore_connectors.tfrecord.columns import BYTES, FLOAT, INT64
from featurestore_connectors.tfrecord.template import Slot, Template


def decode_tensors(
    records: Any, template: Template, columns: Sequence[str]
) -> dict[str, tuple[Any, Any | None]]:
    """Return ``{column: (values, present)}`` as ``RecordAccess.tensorflow_decode`` promises.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow") from error
    records = tf.convert_to_tensor(records)
    graph = _Graph(tf, records, records.shape[0] or -1)
    # Nothing in there is Python control flow over tensors, and AutoGraph stumbles over compiled modules.
    decode = tf.autograph.experimental.do_not_convert(graph.decode)
    return dict(decode([template.slot(name) for name in columns]))


@dataclass(frozen=True)
class _Graph:
    """Records as a uint8 tensor of shape (rows, record bytes); ``rows`` is -1 where the graph does not know them."""

    tf: Any
    records: Any
    rows: int

    def decode(self, slots: Sequence[Slot]) -> dict[str, tuple[Any, Any | None]]:
        """Return values and presence of columns."""
        scalars = [
            slot
            for slot in slots
            if slot.field.column.wire == INT64 and slot.field.column.shape == ()
        ]
        values = self.integers(scalars)
        for slot in slots:
            column = slot.field.column
            if column.wire == BYTES:
                values[column.name] = self.texts(slot)
            elif column.name in values:
                values[column.name] = self.as_feature(values[column.name], column.leaf)
            else:
                values[column.name] = self.as_feature(self.several(slot), column.leaf)
        return {
            slot.field.column.name: (values[slot.field.column.name], self.present(slot))
            for slot in slots
        }

    def present(self, slot: Slot) -> Any | None:
        """Return which rows have a value, None for columns without nulls."""
        if not slot.field.nullable:
            return None
        return self.tf.not_equal(self.records[:, slot.key_offset], np.uint8(wire.MASKED))

    def as_feature(self, numbers: Any, kind: pa.DataType) -> Any:
        """Return int64 or float32 as the feature's own type; dates and times stay int64."""
        tf = self.tf
        if pat.is_boolean(kind):
            return tf.not_equal(numbers, tf.zeros((), numbers.dtype))
        wanted = (
            tf.int64
            if pat.is_date(kind) or pat.is_timestamp(kind)
            else tf.as_dtype(numpy_type(kind))
        )
        return numbers if numbers.dtype == wanted else tf.cast(numbers, wanted)

    def integers(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """Return scalar integers: those of like width in one go, whatever the number of columns."""
        tf = self.tf
        result: dict[str, Any] = {}
        for size, kind in ((4, tf.int32), (8, tf.int64)):
            mine = [slot for slot in slots if (slot.field.width <= 4) == (size == 4)]
            if not mine:
                continue
            parts = tf.concat(
                [self.records[:, slot.offset : slot.offset + size] for slot in mine], axis=1
            )
            words = tf.bitcast(tf.reshape(parts, [self.rows, len(mine), size]), kind)
            widths = [min(slot.field.width, size) for slot in mine]
            masks = np.array(
                [0x7F7F7F7F7F7F7F7F >> 8 * (8 - width) for width in widths], kind.as_numpy_dtype
            )
            joined = self.join(tf.bitwise.bitwise_and(words, masks), max(widths))
            numbers = tf.unstack(tf.cast(joined, tf.int64), axis=1)
            result.update(zip((slot.field.column.name for slot in mine), numbers, strict=True))
        for slot in slots:
            for place in range(8, slot.field.width):
                septet = self.septet(self.records[:, slot.offset + place], place)
                result[slot.field.column.name] = tf.bitwise.bitwise_or(
                    result[slot.field.column.name], septet
                )
        return result

    def join(self, words: Any, width: int) -> Any:
        """Return the integers whose groups of seven bits lie one in a byte (``wire.join``)."""
        both, either = self.tf.bitwise.bitwise_and, self.tf.bitwise.bitwise_or
        number, largest = words.dtype.as_numpy_dtype, words.dtype.max
        for stays, moved_to, shift in reversed(wire.spreading_steps(width)):
            moved = self.tf.bitwise.right_shift(
                both(words, number(moved_to & largest)), number(shift)
            )
            words = either(both(words, number(stays & largest)), moved)
        return words

    def septet(self, part: Any, place: int) -> Any:
        """Return the seven bits of byte ``place`` of a varint where they belong."""
        bits = self.tf.bitwise.bitwise_and(self.tf.cast(part, self.tf.int64), np.int64(0x7F))
        return self.tf.bitwise.left_shift(bits, np.int64(7 * place))

    def several(self, slot: Slot) -> Any:
        """Return floats of any shape, and lists of integers."""
        tf, column, width = self.tf, slot.field.column, slot.field.width
        shape = column.shape or ()
        part = self.records[:, slot.offset : slot.offset + width * column.items]
        if column.wire == FLOAT:
            numbers = tf.bitcast(
                tf.reshape(part, [self.rows, column.items, 4]) if shape else part, tf.float32
            )
        else:
            numbers = self.varints(tf.reshape(part, [self.rows, column.items, width]), width)
        return tf.reshape(numbers, [self.rows, *shape]) if len(shape) > 1 else numbers

    def varints(self, groups: Any, width: int) -> Any:
        """Return the int64 held by varints of ``width`` bytes, given as (..., width)."""
        tf = self.tf
        if width == 1:
            return tf.cast(groups[..., 0], tf.int64)
        size, kind = (4, tf.int32) if width <= 4 else (8, tf.int64)
        edges = [[0, 0]] * (len(groups.shape) - 1) + [[0, max(0, size - width)]]
        words = tf.bitcast(tf.pad(groups[..., : min(width, size)], edges), kind)
        mask = kind.as_numpy_dtype(0x7F7F7F7F7F7F7F7F & kind.max)
        numbers = tf.cast(
            self.join(tf.bitwise.bitwise_and(words, mask), min(width, size)), tf.int64
        )
        for place in range(8, width):
            numbers = tf.bitwise.bitwise_or(numbers, self.septet(groups[..., place], place))
        return numbers

    def texts(self, slot: Slot) -> Any:
        """Return strings: TensorFlow has no operation from bytes to strings, so each byte is looked up and joined."""
        tf = self.tf
        region = self.records[:, slot.offset : slot.offset + slot.field.width]
        single = tf.constant([bytes([value]) for value in range(256)])
        texts = tf.strings.reduce_join(tf.gather(single, tf.cast(region, tf.int32)), axis=1)
        if slot.entry is not None:
            start, size = slot.entry_offset + slot.entry.lengths[-1][0], slot.entry.length_width
            lengths = tf.cast(self.varints(self.records[:, start : start + size], size), tf.int32)
            return tf.strings.substr(texts, tf.zeros_like(lengths), lengths)
        present = self.present(slot)
        return texts if present is None else tf.where(present, texts, tf.constant(b""))
