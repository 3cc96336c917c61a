"""The interface of validators: expectations in, results and failing rows out.

Validators are entry points of the group ``featurestore.validators``, the built-in one included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from featurestore.errors import missing_extra
from featurestore.plugins import find_plugin, load_plugin

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
    """The outcome of one expectation on a table or a chunk of rows.

    ``checked`` is the number of evaluated rows (nulls are often skipped). ``failing`` is a mask of
    the failing rows; None if no row fails or the expectation is not row-level.
    """

    result: ExpectationResult
    checked: int = 0
    failing: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Measure:
    """A metric over all rows that an engine computes without loading rows into this process.

    Null and NaN count as missing. Kinds:

    - "rows": number of rows.
    - "present": rows in which at least one of the columns has a value.
    - "repeated": rows whose values, not all missing, occur in several rows.
    - Of the values of one column: "sum", "mean", "std" (n-1), "min", "max", "median" (None without
      values), "distinct" (number of distinct values).
    """

    kind: MeasureKind
    columns: tuple[str, ...] = ()


class Validator(Protocol):
    """A validator of tables against expectations, plain dicts ``{"type": ..., "kwargs": {...}}``.

    **Expectations are data.** They are stored with a table and are untrusted. ``normalize`` is
    called again before each audit, and no method executes, evaluates, fetches or opens their
    content: anything that could be code is rejected (``InvalidExpectation``).

    **State.** A validator is stateless, picklable and thread-safe: on Spark ``check`` runs on the
    executors. It writes no file, prints nothing and uses no network.

    **Order of calls.** Row-level expectations (``is_row_level``) are passed to ``check`` with one
    chunk of rows after the other; the counts are added up, and ``holds`` decides. Others concern
    the table: if ``measures`` returns metrics, the engine computes them and ``evaluate`` builds the
    result; otherwise ``check`` receives all rows of the expectation's columns at once, or the
    distinct rows if ``needs_copies`` is false.

    **Tables** have at least the columns of the expectations, as feature types, and any number of
    rows, also zero; they are not modified.

    **Errors.** ``InvalidExpectation`` for malformed expectations and for those that cannot be
    evaluated on these types. A failed check is a result, not an error.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    def normalize(self, expectations: object) -> tuple[Expectation, ...]:
        """Convert the user's expectations to plain JSON-serializable dicts; idempotent."""
        ...

    def columns(self, expectation: Expectation) -> tuple[str, ...]:
        """Return the columns whose values an expectation needs; () if it needs only the schema."""
        ...

    def is_row_level(self, expectation: Expectation) -> bool:
        """Return True if the expectation is checked chunk by chunk and identifies failing rows."""
        ...

    def check(self, table: pa.Table, expectations: Sequence[Expectation]) -> list[CheckOutcome]:
        """Return an outcome for each expectation.

        Raises:
            InvalidExpectation: An expectation cannot be evaluated.
        """
        ...

    def holds(self, expectation: Expectation, *, checked: int, unexpected: int) -> bool:
        """Return True if a row-level expectation is met, from its counts over all chunks."""
        ...

    def measures(self, expectation: Expectation, schema: pa.Schema) -> tuple[Measure, ...] | None:
        """Return the metrics that decide an expectation about a table; None if it needs values."""
        ...

    def evaluate(
        self, expectation: Expectation, schema: pa.Schema, *, measured: Mapping[Measure, Any]
    ) -> ExpectationResult:
        """Return the result of an expectation from its measured metrics."""
        ...

    def needs_copies(self, expectation: Expectation) -> bool:
        """Return True if an expectation about a table depends on duplicate rows."""
        ...

    def to_html(self, report: ValidationReport) -> str:
        """Render the report as an HTML page."""
        ...


def find_validator(name: str = "great_expectations") -> Validator:
    """Create a validator from the name of its entry point.

    Raises:
        MissingExtra: Its library is not installed.
    """
    entry_point = find_plugin("validators", name)
    if entry_point is None:
        raise missing_extra(name, "validation")
    try:
        validator: Validator = load_plugin(entry_point)()
    except ImportError as error:
        raise missing_extra(name, "validation") from error
    return validator
