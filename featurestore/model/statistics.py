"""Table statistics: counts over all rows, and estimates from a sample.

An undefined value (the mean of an empty column, the correlation with a constant) is None in Python
and null in JSON, never 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal, cast

from featurestore.errors import FeatureNotFound, listing
from featurestore.model import display
from featurestore.model.codecs import JSON_OBJECT
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.records import (
    AS_ARRAY,
    DEFAULT_IF_MISSING,
    Codec,
    Key,
    Record,
    codec_of,
)
from featurestore.model.roles import Role

STATISTICS_FORMAT = 1
Kind = Literal["number", "boolean", "time", "text", "binary", "list", "struct"]
Value = bool | int | float | str
# Longer strings are stored as their first characters and "…".
MAX_TEXT_CHARACTERS = 120
# The grid of stored quantiles, dense enough to compare two distributions.
PROBABILITIES: tuple[float, ...] = tuple(step / 200 for step in range(201))


@dataclass(frozen=True)
class Lengths:
    """Lengths over all rows: characters of strings, bytes of binary values, items of lists."""

    minimum: Annotated[int, Key("min")]
    maximum: Annotated[int, Key("max")]
    mean: float


@dataclass(frozen=True)
class TopValue:
    """A frequent value, and the number of sample rows that contain it."""

    value: Value
    count: int


@dataclass(frozen=True)
class Histogram:
    """Counts of sample rows between edges; the last bin includes its upper edge.

    There is one more edge than there are counts. Times are ISO 8601 strings.
    """

    edges: tuple[float | str, ...]
    counts: tuple[int, ...]


# The order in JSON, with the names of the published JSON schema.
_COLUMN_KEYS = (
    "name", "type", "kind", "role", "count", "nulls", "nan", "infinite", "sum", "mean", "std",
    "lengths", "quantiles", "distinct", "distinct_exact", "top", "top_complete", "histogram",
    "sampled", "minimum", "maximum",
)  # fmt: skip


@dataclass(frozen=True)
class ColumnStatistics(Record, keys=_COLUMN_KEYS, closed=True):
    """Statistics of one column.

    Over all rows: ``count`` (values that are neither null nor NaN), ``nulls``, ``nan``,
    ``infinite`` (included in count), ``sum``, ``mean``, ``std`` (with n-1; seconds for times),
    ``minimum``, ``maximum``, ``lengths``. Infinite values are excluded from sum, mean, std, minimum
    and maximum. From the sample, or from all rows if there are at most 1,000 distinct values:
    ``sampled`` (the number of examined rows with a value; None in statistics of older releases),
    ``quantiles`` (at ``PROBABILITIES``), ``distinct``, ``top``, ``histogram``. Times are ISO 8601
    strings in UTC.

    ``top`` contains all values if there are at most 100 (``top_complete``); otherwise it contains
    the 20 most frequent values, except values that occur once. ``top_share`` is the fraction of
    rows with these values.
    """

    name: str
    type: str
    kind: Kind
    role: Role
    count: int
    nulls: int
    nan: int = 0
    infinite: int = 0
    sum: float | int | None = None
    mean: float | str | None = None
    std: float | None = None
    minimum: Annotated[Value | None, Key("min")] = None
    maximum: Annotated[Value | None, Key("max")] = None
    lengths: Lengths | None = None
    quantiles: tuple[float | str, ...] = field(default=(), repr=False)
    distinct: int | None = None
    distinct_exact: bool = True
    top: tuple[Annotated[TopValue, AS_ARRAY], ...] = field(default=(), repr=False)
    top_complete: bool = False
    histogram: Histogram | None = field(default=None, repr=False)
    sampled: Annotated[int | None, DEFAULT_IF_MISSING] = None

    __repr__ = display.record_repr

    @property
    def missing(self) -> int:
        """The number of nulls and NaN."""
        return self.nulls + self.nan

    @property
    def top_share(self) -> float | None:
        """The fraction of the sampled values in ``top``; 1.0 if ``top`` is complete.

        None if values were not counted individually.

        >>> store.get_featuregroup_statistics("weather").column("origin").top_share
        1.0
        """
        if self.distinct is None:
            return None
        if self.top_complete:
            return 1.0
        if self.sampled is None:
            return None
        return sum(top_value.count for top_value in self.top) / max(self.sampled, 1)

    def quantile(self, probability: float) -> float | str | None:
        """Return the stored quantile nearest to a probability, or None if there are no values.

        >>> store.get_featuregroup_statistics("weather").column("temp").quantile(0.5)
        37.75
        """
        if not self.quantiles:
            return None
        return self.quantiles[round(probability * (len(self.quantiles) - 1))]


@dataclass(frozen=True)
class Correlations:
    """A symmetric correlation matrix over ``columns``.

    A value is None if the pair has no correlation (a constant column, or fewer than two rows).
    ``sampled`` is True if the correlations were computed from a sample, not from all rows.
    """

    method: Literal["pearson", "spearman"]
    columns: tuple[str, ...]
    matrix: tuple[tuple[float | None, ...], ...] = field(repr=False)
    # Statistics of earlier releases do not have this field.
    sampled: Annotated[bool, DEFAULT_IF_MISSING] = False

    __repr__ = display.record_repr

    def value(self, left: str, right: str) -> float | None:
        """Return the correlation of two columns.

        >>> two = Correlations("pearson", ("a", "b"), ((1.0, 0.5), (0.5, 1.0)))
        >>> two.value("a", "b")
        0.5
        """
        return self.matrix[self.columns.index(left)][self.columns.index(right)]

    def top_pairs(self, limit: int = 20) -> list[tuple[str, str, float]]:
        """Return the pairs with the largest absolute correlation, the strongest first.

        >>> two = Correlations("pearson", ("a", "b"), ((1.0, 0.5), (0.5, 1.0)))
        >>> two.top_pairs()
        [('a', 'b', 0.5)]
        """
        pairs = []
        for row, left in enumerate(self.columns):
            for column in range(row + 1, len(self.columns)):
                value = self.matrix[row][column]
                if value is not None:
                    pairs.append((left, self.columns[column], value))
        # Names decide between equal correlations, so that the order is deterministic.
        pairs.sort(key=lambda pair: (-abs(pair[2]), pair[0], pair[1]))
        return pairs[:limit]


Method = Literal["pearson", "spearman"]


def _correlations(method: Method) -> Codec:
    """Return the codec of correlations, whose method is the name of the field."""
    codec = codec_of(Correlations)

    def read(data: object) -> Correlations:
        return cast("Correlations", codec.read({**JSON_OBJECT.read(data), "method": method}))

    def write(correlations: Correlations) -> JsonDict:
        data = cast("JsonDict", codec.to_json(correlations))
        del data["method"]
        return data

    return Codec(read, write)


_STATISTICS_KEYS = (
    "source", "rows", "sample_rows", "sample_distinct", "exact", "seed", "columns", "pearson",
    "spearman",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Statistics(
    Record, format=STATISTICS_FORMAT, subject="A JSON object of statistics", keys=_STATISTICS_KEYS
):
    """Statistics of one table.

    ``pearson`` is computed over all rows, for each pair over the rows with finite values in both
    columns; for more than 64 columns it is computed from the sample. ``spearman`` is the Pearson
    correlation of ranks in the sample, with the ranks of each column computed over its own values.
    ``sample_rows`` is the number of rows that the sample represents; ``exact`` is True if these are
    all rows. Otherwise the sample contains the ``sample_distinct`` smallest row hashes, a uniform
    sample of distinct rows: the error of a fraction p of rows is at most about ``error`` = 1 /
    sqrt(sample_distinct) (two standard errors at p = 1/2). ``source`` identifies the table, for
    titles: featuregroup, version, delta_version, split.

    >>> statistics = store.get_featuregroup_statistics("weather")
    >>> (statistics.rows, statistics.exact, [each.name for each in statistics.columns])
    (4, True, ['origin', 'measured_at', 'temp', 'wind'])
    """

    rows: int
    columns: tuple[ColumnStatistics, ...]
    pearson: Annotated[Correlations | None, _correlations("pearson")] = None
    spearman: Annotated[Correlations | None, _correlations("spearman")] = None
    sample_rows: Annotated[int, Key("sample.rows")] = 0
    sample_distinct: Annotated[int, Key("sample.distinct")] = 0
    exact: Annotated[bool, Key("sample.exact")] = True
    seed: Annotated[int, Key("sample.seed")] = 0
    source: JsonMapping = field(default_factory=dict)

    def __repr__(self) -> str:
        from featurestore.model.statistics_text import describe

        return describe(self)

    def _repr_html_(self) -> str:
        from featurestore.model import display
        from featurestore.model.statistics_text import format_title, to_records

        return display.records_table(to_records(self), caption=format_title(self))

    def column(self, name: str) -> ColumnStatistics:
        """Return the statistics of a column; raise FeatureNotFound with the existing columns.

        >>> temp = store.get_featuregroup_statistics("weather").column("temp")
        >>> (temp.minimum, temp.mean, temp.maximum, temp.missing)
        (36.0, 37.625, 39.0, 0)
        """
        for candidate in self.columns:
            if candidate.name == name:
                return candidate
        names = listing(candidate.name for candidate in self.columns)
        raise FeatureNotFound(f"No statistics for column {name!r}. Available: {names}.")

    @property
    def error(self) -> float:
        """Two standard errors of a row fraction of 1/2; 0 if the sample contains all rows.

        >>> store.get_featuregroup_statistics("weather").error
        0.0
        """
        if self.exact:
            return 0.0
        return float(self.sample_distinct**-0.5)

    def to_json(self) -> JsonDict:
        """Convert to a JSON object, the inverse of ``from_json``.

        See ``statistics.schema.json``.

        >>> store.get_featuregroup_statistics("weather").to_json()["rows"]
        4
        """
        return super().to_json()

    def to_bytes(self) -> bytes:
        """Return compact JSON.

        >>> store.get_featuregroup_statistics("weather").to_bytes()[:10]
        b'{"format":'
        """
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: object) -> Statistics:
        """Parse the output of ``to_json``.

        Raises:
            MalformedJson: The JSON object is invalid.
            FormatTooNew: A newer release wrote the statistics.

        >>> statistics = store.get_featuregroup_statistics("weather")
        >>> Statistics.from_json(statistics.to_json()) == statistics
        True
        """
        return super().from_json(data)
