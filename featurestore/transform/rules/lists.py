"""The rule that gives lists of varying length one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonObject
from featurestore.transform.forms import Form, Kind
from featurestore.transform.ops import Lists, Ops, Value
from featurestore.transform.rules.rule import Rule
from featurestore.transform.steps import Step

KEEP = ("first", "last")
_DTYPES = {"number": "float32", "whole": "int64", "text": ""}


class Pad(Rule):
    """As many items of each list: the first or the last ones, filled up behind them.

    What fills up is 0 among numbers, and a missing value among whole numbers and texts, which is 0
    in every code.
    """

    name = "pad"
    in_graphs = False
    of_lists = True

    def output(self, step: Step, given: Form) -> Form:
        self.takes(given, "list")
        assert given.item is not None
        return Form(given.item, (step.options["length"],), _DTYPES[given.item])

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        lists = value.data
        if not isinstance(lists, Lists):
            raise InvalidArgument(
                "Lists of varying length get one length where rows are read, which a graph cannot "
                "hold.",
                hint='dataset.preprocessor("numpy"), or reader.batches and reader.tf_dataset',
            )
        rows, there = _placed(lists, step.options["length"], keep=step.options["keep"])
        if value.present is not None:
            there = there & np.asarray(value.present)[:, None]
        if lists.items.dtype.kind != "f":
            kind: Kind = "whole" if lists.items.dtype.kind == "i" else "text"
            return Value(kind, ops.from_numpy(rows), ops.from_numpy(there))
        if value.present is not None:
            rows[~np.asarray(value.present)] = np.nan
        return Value("number", ops.from_numpy(rows))

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        options.number("length", least=1)
        if options.text("keep") not in KEEP:
            raise options.wrong("keep", "'first' or 'last'")


def _placed(
    lists: Lists, length: int, *, keep: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return the items that stay as (rows, length), and where there are any."""
    ends = np.cumsum(lists.lengths)
    starts = ends - lists.lengths
    kept = np.minimum(lists.lengths, length)
    if keep == "last":
        starts = ends - kept
    there = np.arange(length) < kept[:, None]
    zero: Any = b"" if lists.items.dtype == object else 0
    rows = np.full((len(kept), length), zero, dtype=lists.items.dtype)
    positions = starts[:, None] + np.arange(length)
    rows[there] = lists.items[positions[there]]
    return rows, there
