"""The interface of validators: expectations in, results and failing rows out.

A validator is looked up by name among the entry points ``featurestore.validators``; ours comes that
way too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from featurestore.errors import missing_extra
from featurestore.plugins.lookup import find_plugin, load_plugin

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from featurestore.model.validation import ExpectationResult, ValidationReport

Expectation = Mapping[str, Any]
MeasureKind = Literal[
    "rows", "present", "sum", "mean", "std", "min", "max", "median", "distinct", "repeated"
]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of one expectation on one table, or on one chunk of it.

    ``checked`` counts the rows that it looked at (nulls are often left out). ``failing`` marks the
    rows that broke it; None where no row did or rows cannot be named.
    """

    result: ExpectationResult
    checked: int = 0
    failing: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Measure:
    """A number about all rows that an engine computes, so that no row has to be loaded.

    Null and NaN are missing.

    "rows": all of them; "present": rows in which one of the columns has a value; "repeated": rows
    whose values, not all missing, occur in several rows. The others are of the values of one
    column: "sum", "mean", "std" (n-1), "min", "max", "median" (None without values), "distinct"
    (how many different ones).
    """

    kind: MeasureKind
    columns: tuple[str, ...] = ()


class Validator(Protocol):
    """Checks tables against expectations given as plain dicts ``{"type": ..., "kwargs": {...}}``.

    **Expectations are data.** They are stored with a table and may have been written by anybody.
    ``normalize`` is called on them again before each audit, and no method runs, evaluates, fetches
    or opens what one says: what cannot be told from code is refused (``InvalidExpectation``).

    **State.** A validator has none and is picklable: on Spark ``check`` runs on the executors.
    Several threads may use one. It writes no file, prints nothing and asks for no network.

    **Order of calls.** An expectation whose ``is_row_level`` is true is given to ``check`` with one
    chunk of rows after the other; the counts are added up, and ``holds`` decides. Any other is
    about the table: with ``measures`` the engine computes numbers, of which ``evaluate`` makes the
    result; without, ``check`` gets all rows of the columns that it names at once, or each different
    row once where ``needs_copies`` is false.

    **Tables** have at least the columns that the expectations name, as feature types, with any
    number of rows, also none; they are not changed.

    **Errors.** ``InvalidExpectation`` for what is no expectation, or cannot be computed on these
    types. A check that fails is a result, not an error.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    def normalize(self, expectations: object) -> tuple[Expectation, ...]:
        """Return plain dicts, which JSON can hold, for whatever form the user gave.

        Those are returned as they are.
        """
        ...

    def columns(self, expectation: Expectation) -> tuple[str, ...]:
        """Return the columns whose values an expectation needs.

        () where names and number of columns are enough.
        """
        ...

    def is_row_level(self, expectation: Expectation) -> bool:
        """Tell whether the expectation can be checked chunk by chunk and names failing rows."""
        ...

    def check(self, table: pa.Table, expectations: Sequence[Expectation]) -> list[CheckOutcome]:
        """Return a outcome for each expectation.

        InvalidExpectation for one that cannot be computed.
        """
        ...

    def holds(self, expectation: Expectation, *, checked: int, unexpected: int) -> bool:
        """Tell whether a row-level expectation holds, given its counts over all chunks."""
        ...

    def measures(self, expectation: Expectation, schema: pa.Schema) -> tuple[Measure, ...] | None:
        """Return what decides an expectation about a table; None when only its values do."""
        ...

    def evaluate(
        self, expectation: Expectation, schema: pa.Schema, *, found: Mapping[Measure, Any]
    ) -> ExpectationResult:
        """Return the result of an expectation whose ``measures`` are known."""
        ...

    def needs_copies(self, expectation: Expectation) -> bool:
        """Tell whether it matters to an expectation about a table how often a row occurs."""
        ...

    def to_html(self, report: ValidationReport) -> str:
        """Return the report as an HTML page."""
        ...


def find_validator(name: str = "great_expectations") -> Validator:
    """Return a validator by the name of its entry point.

    MissingExtra when its library is absent.
    """
    found = find_plugin("validators", name)
    if found is None:
        raise missing_extra(name, "validation")
    try:
        validator: Validator = load_plugin(found)()
    except ImportError as error:
        raise missing_extra(name, "validation") from error
    return validator
