"""The origins of derived columns: source columns and OpenLineage's transformations.

DIRECT transformations compute the value of an output column. INDIRECT ones affect the values of one
output column, for example the condition of a CASE, or the rows of the result, for example a filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

# OpenLineage's subtypes (ColumnLineageDatasetFacet), direct and indirect.
IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"
JOIN, FILTER, GROUP_BY, SORT = "JOIN", "FILTER", "GROUP_BY", "SORT"
WINDOW, CONDITIONAL = "WINDOW", "CONDITIONAL"
# In ascending precedence: the aggregate of a transformed value is an aggregation.
_DIRECT = (IDENTITY, TRANSFORMATION, AGGREGATION)


class Dataset(NamedTuple):
    """A feature group version, the path of a table, or a registered source (``source:shop``).

    ``query`` is the table, path or query hash that is read from a registered source.
    """

    source: str
    version: int | None = None
    query: str = ""


@dataclass(frozen=True)
class Origin:
    """A source column of a derived column, with the transformation.

    ``subtype`` is an OpenLineage subtype, ``text`` a description. With ``masking``, the source value
    cannot be recovered from the result.
    """

    dataset: Dataset
    column: str
    subtype: str = IDENTITY
    text: str = ""
    masking: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether the value of the derived column is computed from this column."""
        return self.subtype in _DIRECT

    def then(self, subtype: str, *, masking: bool = False) -> Origin:
        """Return the origin after a further transformation.

        >>> Origin(Dataset("trips", 1), "fare", AGGREGATION).then(TRANSFORMATION).subtype
        'AGGREGATION'
        """
        if subtype not in _DIRECT:
            return replace(self, subtype=subtype)
        if not self.is_direct:
            return self
        combined = max(self.subtype, subtype, key=_DIRECT.index)
        return replace(self, subtype=combined, masking=self.masking or masking)


Origins = frozenset[Origin]
NONE: Origins = frozenset()
# The key of the columns of a query whose names its text does not contain.
UNNAMED = "*"


def then(origins: Iterable[Origin], subtype: str, *, masking: bool = False) -> Origins:
    """Return the origins after a further transformation."""
    return frozenset(origin.then(subtype, masking=masking) for origin in origins)


def union(origins: Iterable[Iterable[Origin]]) -> Origins:
    """Return all origins."""
    return NONE.union(*origins)


@dataclass(frozen=True)
class Relation:
    """The origins of the columns of a table or query, by name in lower case, and of its rows.

    ``table`` is a table with unknown columns.
    """

    columns: Mapping[str, Origins]
    rows: Origins = NONE
    table: Dataset | None = None

    def column(self, name: str) -> Origins:
        """Return the origins of a column; the name is in lower case."""
        if self.table is not None:
            return frozenset({Origin(self.table, name)})
        return self.columns.get(name, self.columns.get(UNNAMED, NONE))

    @property
    def all_columns(self) -> Origins:
        """The origins of all columns."""
        return union(self.columns.values())


def sort_origins(origins: Iterable[Origin]) -> list[Origin]:
    """Return the origins without duplicates in an order that does not depend on the process."""
    return sorted(
        set(origins),
        key=lambda origin: (
            not origin.is_direct, origin.dataset.source, origin.dataset.version or 0,
            origin.dataset.query, origin.column, origin.subtype, origin.masking, origin.text,
        ),
    )  # fmt: skip
