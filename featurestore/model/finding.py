"""A monitored value of one window, its bounds, and its description in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from featurestore.model.records import AS_ARRAY, Codec, codec_of
from featurestore.model.times import format_duration

FindingKind = Literal[
    "drift", "nulls", "values", "anchor", "freshness", "volume", "schema", "metric"
]

# The description of a value below its bounds, within them, and above them.
_STATEMENTS: Mapping[str, tuple[str, str, str]] = {
    "drift": ("distribution shifted", "distribution unchanged", "distribution shifted"),
    "anchor": ("baseline drifted", "baseline close to its anchor", "baseline drifted"),
    "nulls": ("fewer missing values", "missing values as usual", "more missing values"),
    "out_of_range": ("", "values within the baseline's range", "values outside the baseline"),
    "new_values": ("", "values known from the baseline", "new values"),
    "gone_values": ("", "no values lost", "values lost"),
    "freshness": ("", "recent", "too old"),
    "volume": ("fewer than usual", "as many as usual", "more than usual"),
    "schema": ("", "unchanged", "changed"),
    "metric": ("too low", "within bounds", "too high"),
}
_SHARES = ("null_share", "out_of_range", "new_values", "gone_values")
# A metric and the number of rows need no further name.
_LABELS = {
    "psi": "PSI",
    "ks": "KS",
    "js": "JS",
    "tv": "TV",
    "value": "",
    "rows": "",
    "columns": "",
}


@dataclass(frozen=True)
class Finding:
    """A monitored value and its bounds.

    ``subject`` is the feature or metric, or "" for all rows of the window. ``out`` is True if the
    value is out of bounds in this window; ``alarm`` is True if it is out of bounds in the required
    number of consecutive windows. ``excess`` is the distance of the value from its bound, and 1 at
    the bound.
    """

    kind: FindingKind
    subject: str
    measure: str
    value: float | None
    low: float | None = None
    high: float | None = None
    out: bool = False
    alarm: bool = False
    text: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the finding, equal in all windows."""
        return self.kind, self.subject, self.measure

    @property
    def excess(self) -> float:
        """The relative distance of the value from its bound: 1 at the bound, more beyond it."""
        if self.value is None:
            return 2.0 if self.out else 0.0
        # A bound of 0 has no ratio.
        if self.high:
            ratio = self.value / self.high
            if ratio > 1 or not self.low:
                return ratio
        if self.low and self.value < self.low:
            # The limit of 100 also avoids a division by 0.
            return self.low / max(self.value, self.low / 100)
        # Out of bounds without a ratio ranks above values close to their bound.
        return 2.0 if self.out else 0.0

    @property
    def statement(self) -> str:
        """The description without numbers, such as "distribution shifted"."""
        below, within, above = _STATEMENTS[self.measure if self.kind == "values" else self.kind]
        if not self.out:
            return within
        is_below = self.value is not None and self.low is not None and self.value < self.low
        return below if is_below else above

    @property
    def bounds_text(self) -> str:
        """The bounds, such as "limit 0.2" or "limits 130 to 360"; empty without bounds."""
        low, high = self.format(self.low), self.format(self.high)
        if low and high:
            return f"limits {low} to {high}"
        if low:
            return f"at least {low}"
        return f"limit {high}" if high else ""

    def format(self, value: float | None) -> str:
        """Format a value or bound in the unit of the measure: a share, an age or a number.

        >>> Finding("nulls", "temp", "null_share", 0.5).format(0.125)
        '12.5%'
        """
        if value is None:
            return ""
        if self.kind == "freshness":
            return format_duration(timedelta(seconds=round(value)))
        if self.measure in _SHARES:
            return f"{value:.1%}"
        return f"{value:,.0f}" if self.kind == "volume" else f"{value:.3g}"

    def __str__(self) -> str:
        """Describe the finding, words before numbers.

        >>> print(Finding("drift", "temp", "psi", 1.7, None, 0.2, out=True))
        temp: distribution shifted; PSI 1.7, limit 0.2
        """
        if self.text:
            return self.text
        words = f"{self.subject or self.measure}: {self.statement}"
        if self.value is None:
            return words if self.out else f"{self.subject or self.measure}: not measured"
        return f"{words}; {self.measured_text}"

    @property
    def measured_text(self) -> str:
        """The value with its measure and bounds, such as "PSI 1.7, limit 0.2"."""
        label = "share" if self.measure in _SHARES else _LABELS.get(self.measure, self.measure)
        measured = f"{label} {self.format(self.value)}".strip()
        return ", ".join(filter(None, [measured, self.bounds_text]))

    def to_json(self) -> list[Any]:
        """Convert to a JSON array, the inverse of ``from_json``."""
        return cast("list[Any]", _codec().to_json(self))

    @classmethod
    def from_json(cls, data: object) -> Finding:
        """Parse the output of ``to_json``; raise MalformedJson if it is invalid."""
        return cast("Finding", _codec().read(data))


def _codec() -> Codec:
    return codec_of(Annotated[Finding, AS_ARRAY])
