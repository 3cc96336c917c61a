"""The validator interface: evaluation of expectations to results and failing rows.

Validators, including the built-in validator, are entry points of the group
``featurestore.validators``.
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
    "rows",
    "present",
    "sum",
    "mean",
    "std",
    "min",
    "max",
    "median",
    "distinct",
    "repeated",
    "repeated_rows",
]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of an expectation for a table or a chunk of rows.

    ``checked`` is the number of evaluated rows (nulls are often skipped). ``failing`` is a mask of
    the failing rows, None if no row fails or the expectation is not row-level.
    """

    result: ExpectationResult
    checked: int = 0
    failing: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Measure:
    """A metric over all rows that an engine computes without loading rows into the process.

    Nulls and NaN are missing values. The kinds are:

    - "rows": the number of rows.
    - "present": the number of rows with a value in at least one of the columns.
    - "repeated": the number of rows whose values, not all missing, occur in several rows.
    - "repeated_rows": the same, including rows whose values are all missing.
    - Metrics of one column: "sum", "mean", "std" (n-1), "min", "max", "median" (all None without
      values), and "distinct", the number of distinct values.
    """

    kind: MeasureKind
    columns: tuple[str, ...] = ()


class Validator(Protocol):
    """Validates tables against expectations, which are dicts ``{"type": ..., "kwargs": {...}}``.

    **Expectations** are untrusted data that is stored with a table. ``normalize`` is called again
    before each audit. Methods must not execute, evaluate, fetch or open the content of
    expectations: anything that could be code is rejected (``InvalidExpectation``).

    **State.** A validator is stateless, picklable and thread-safe; on Spark, ``check`` runs in the
    executors. It writes no files, prints nothing and uses no network.

    **Order of calls.** For row-level expectations (``is_row_level``), ``check`` is called with each
    chunk of rows, the counts are summed, and ``holds`` is called with the totals. For table-level
    expectations, the engine computes the metrics that ``measures`` returns, and ``evaluate``
    returns the result. If ``measures`` returns None, ``check`` is called with all rows of the
    required columns, or with the distinct rows if ``needs_copies`` returns False.

    **Features of other groups.** For an expectation of type ``model.validation.IN_FEATURE``, the
    tables contain the boolean column ``FeatureComparison.marker``, which is True for values that
    exist in the feature and null for missing values. ``columns`` does not return it.

    **Tables** have at least the required columns, with feature types, and any number of rows,
    including zero. They must not be modified.

    **Errors.** ``InvalidExpectation`` for malformed expectations, and for expectations that do not
    support the column types. A failed check is a result, not an error.
    """

    @property
    def name(self) -> str:
        """The entry point's name."""
        ...

    def normalize(self, expectations: object) -> tuple[Expectation, ...]:
        """Convert the user's expectations to JSON-serializable dicts; idempotent."""
        ...

    def columns(self, expectation: Expectation) -> tuple[str, ...]:
        """Return the columns that an expectation requires, or () if it requires only the schema."""
        ...

    def is_row_level(self, expectation: Expectation) -> bool:
        """Return True if the expectation can be checked by chunk and identifies failing rows."""
        ...

    def check(self, table: pa.Table, expectations: Sequence[Expectation]) -> list[CheckOutcome]:
        """Evaluate expectations and return an outcome for each.

        Raises:
            InvalidExpectation: An expectation cannot be evaluated.
        """
        ...

    def holds(self, expectation: Expectation, *, checked: int, unexpected: int) -> bool:
        """Return True if a row-level expectation is met, based on the counts over all chunks."""
        ...

    def measures(self, expectation: Expectation, schema: pa.Schema) -> tuple[Measure, ...] | None:
        """Return the metrics that a table-level expectation requires, or None if it needs rows."""
        ...

    def evaluate(
        self, expectation: Expectation, schema: pa.Schema, *, measured: Mapping[Measure, Any]
    ) -> ExpectationResult:
        """Return the result of an expectation, based on the measured metrics."""
        ...

    def needs_copies(self, expectation: Expectation) -> bool:
        """Return True if a table-level expectation depends on duplicate rows."""
        ...

    def to_html(self, report: ValidationReport) -> str:
        """Render the report as an HTML page."""
        ...


def find_validator(name: str = "great_expectations") -> Validator:
    """Create a validator by its entry point name.

    Raises:
        MissingExtra: The library of the validator is not installed.
    """
    entry_point = find_plugin("validators", name)
    if entry_point is None:
        raise missing_extra(name, "validation")
    try:
        validator: Validator = load_plugin(entry_point)()
    except ImportError as error:
        raise missing_extra(name, "validation") from error
    return validator
