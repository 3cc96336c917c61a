"""The interface of rules: output form, fitting, application."""

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
    """A kind of step. Rules are stateless: options and fitted values are in the step.

    ``output`` rejects unsupported inputs. A rule with fitted values implements ``fit`` and, if exact
    statistics of a split suffice, ``from_statistics``. ``apply`` uses only operations of ``Ops``, so
    that its results are equal in every library.
    """

    name = ""
    # Whether the step maps missing values to meaningful values.
    handles_missing = False
    fits = False
    # Whether a TensorFlow graph can contain it.
    supports_graphs = True
    # Whether it accepts variable-length lists, as the first step of their chains.
    for_lists = False

    def output(self, step: Step, form: Form) -> Form:
        """Return the form of the result.

        Raises:
            InvalidArgument: The rule does not support the input.
        """
        raise NotImplementedError

    def fit(self, step: Step, sample: Sample, form: Form) -> Mapping[str, Any]:
        """Return the fitted values as JSON."""
        return {}

    def from_statistics(
        self, step: Step, column: ColumnStatistics | None, form: Form
    ) -> Mapping[str, Any] | None:
        """Return the fitted values from statistics, None if the values themselves are needed.

        ``column`` has the statistics of the stored values; None if they are missing or if this is
        not the first step.
        """
        return None

    def apply(self, ops: Ops, step: Step, value: Value) -> Value:
        """Return the column with the step applied."""
        raise NotImplementedError

    def takes_byte_rows(self, step: Step) -> bool:
        """Return True if binaries of one length may be uint8 of (rows, bytes)."""
        return False

    def check(self, options: JsonObject, fitted: JsonObject | None) -> None:
        """Check the options and fitted values of a step in a file.

        Raises:
            MalformedJson: They are invalid.
        """

    def fitted_text(self, step: Step) -> str:
        """Return a short text of the fitted values."""
        return ""

    def check_input(self, form: Form, *kinds: str) -> None:
        """Raise InvalidArgument unless the input has one of the kinds."""
        if form.kind not in kinds:
            raise InvalidArgument(
                f"{self.name}() accepts {' or '.join(_KIND_NAMES[kind] for kind in kinds)}, "
                f"not {_KIND_NAMES[form.kind]}.",
                hint=_HINTS.get((form.kind, kinds[0])),
            )


_KIND_NAMES = {
    "number": "numbers",
    "whole": "integers",
    "text": "strings",
    "binary": "bytes",
    "code": "codes",
    "vector": "vectors",
    "list": "variable-length lists",
    "other": "values of this type",
}
_HINTS = {
    ("list", "number"): "t.pad(length) | ... pads lists to one length",
    ("list", "text"): "t.pad(length) | ... pads lists to one length",
    ("number", "list"): "remove t.pad(...): only variable-length lists need it",
    ("text", "list"): "remove t.pad(...): only variable-length lists need it",
    ("whole", "list"): "remove t.pad(...): only variable-length lists need it",
    ("number", "text"): 't.cast("int64") makes integers, t.bins(edges) categories',
    ("text", "number"): "t.vocabulary(), t.hash_bucket(n) or t.one_hot() encode strings as numbers",
}


def no_values_error(step: Step) -> InvalidArgument:
    """Return the error for a column without values to fit a step on."""
    return InvalidArgument(
        f"{step} cannot be fitted: all values are missing or infinite.",
        hint="omit the column, or use t.impute(value) first",
    )
