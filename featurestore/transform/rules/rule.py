"""What a rule is: the form that it gives, what it is fitted on, what it does to a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.model.json_object import JsonObject
from featurestore.model.statistics import ColumnStatistics
from featurestore.transform.forms import Form
from featurestore.transform.ops import Ops, Value
from featurestore.transform.sample import Sample
from featurestore.transform.steps import Step


class Rule:
    """One kind of step. Rules have no state: options and fitted values are in the step.

    ``output`` refuses what the rule cannot take. A rule that is fitted has ``fit``, and where the
    statistics of a split tell exactly what it needs, ``from_statistics``. ``apply`` is written in
    the operations of ``Ops``, so that it is the same in every library.
    """

    name = ""
    # Whether a missing value leaves the step as a value that means something.
    settles_missing = False
    fits = False
    # Whether a graph of TensorFlow can hold it.
    in_graphs = True
    # Whether it takes lists of varying length, and is the first step of their chains.
    of_lists = False

    def output(self, step: Step, given: Form) -> Form:
        """Return the form of the result; InvalidArgument where the input cannot be taken."""
        raise NotImplementedError

    def fit(self, step: Step, sample: Sample, given: Form) -> Mapping[str, Any]:
        """Return what is fitted, as JSON."""
        return {}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, given: Form
    ) -> Mapping[str, Any] | None:
        """Return what is fitted without looking at values; None: they have to be looked at.

        ``column`` are the statistics of untouched values, None where there are none or steps come
        before.
        """
        return None

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        """Return the column with the step applied."""
        raise NotImplementedError

    def takes_byte_rows(self, step: Step) -> bool:
        """Return whether binaries of one length may come as uint8 of (rows, bytes)."""
        return False

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        """Check what a file says of a step; MalformedJson names what is wrong."""

    def fitted_text(self, step: Step) -> str:
        """Return the fitted values in a few words."""
        return ""

    def takes(self, given: Form, *kinds: str) -> None:
        """Raise unless the input is of one of some kinds."""
        if given.kind not in kinds:
            raise InvalidArgument(
                f"{self.name}() takes {' or '.join(_NAMES[kind] for kind in kinds)}, "
                f"not {_NAMES[given.kind]}.",
                hint=_HINTS.get((given.kind, kinds[0])),
            )


_NAMES = {
    "number": "numbers",
    "whole": "whole numbers",
    "text": "texts",
    "binary": "bytes",
    "code": "codes",
    "vector": "vectors",
    "list": "lists of varying length",
    "other": "values of this type",
}
_HINTS = {
    ("list", "number"): "t.pad(length) | ... gives lists one length",
    ("list", "text"): "t.pad(length) | ... gives lists one length",
    ("number", "list"): "leave t.pad(...) out: values and lists of one length need none",
    ("text", "list"): "leave t.pad(...) out: values and lists of one length need none",
    ("whole", "list"): "leave t.pad(...) out: values and lists of one length need none",
    ("number", "text"): 't.cast("int64") makes whole numbers, t.bins(edges) categories',
    ("text", "number"): "t.vocabulary(), t.hash_bucket(n) or t.one_hot() make numbers of texts",
}


def nothing_to_fit(step: Step) -> InvalidArgument:
    """Return the error for a column that has no value to fit a step on."""
    return InvalidArgument(
        f"{step} has nothing to be fitted on: all values are missing or infinite.",
        hint="leave the column out, or t.impute(value) first",
    )
