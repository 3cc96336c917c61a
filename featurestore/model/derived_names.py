"""Names of derived columns, such as masks, cells of lists, windows and predictions.

A derived name may be that of another column. One column would then silently replace the other, so
every result with derived columns passes all its names to ``check_distinct_names``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from featurestore.errors import ColumnConflict

PRESENT = "_present"


class NamedColumn(NamedTuple):
    """A column of a result: its name and its description, such as "column 'x'" or a window."""

    name: str
    description: str


def mask_name(column: str) -> str:
    """Return the name of the mask of non-null values of a column.

    >>> mask_name("coupon")
    'coupon_present'
    """
    return column + PRESENT


def cell_names(column: str, cells: int) -> list[str]:
    """Return the names of the cells of a list, an image or a one-hot vector.

    >>> cell_names("color", 2)
    ['color_0', 'color_1']
    """
    return [f"{column}_{cell}" for cell in range(cells)]


def check_distinct_names(
    columns: Iterable[NamedColumn], *, hint: Callable[[NamedColumn], str]
) -> None:
    """Refuse columns with the same name; like the engines, ignore case.

    Args:
        columns: All columns of a result, existing ones before derived ones.
        hint: Returns the hint for a column whose name an earlier column has.

    >>> columns = [NamedColumn("c_0", "column 'c_0'"), NamedColumn("c_0", "element 0 of column 'c'")]
    >>> check_distinct_names(columns, hint=lambda column: "columns=['c']")
    Traceback (most recent call last):
    featurestore.errors.ColumnConflict: element 0 of column 'c' has the same output name 'c_0' as column 'c_0'.
    Hint: columns=['c']

    Raises:
        ColumnConflict: Two columns have the same name.
    """
    descriptions: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in descriptions:
            raise ColumnConflict(
                f"{column.description} has the same output name {column.name!r} as "
                f"{descriptions[folded]}.",
                hint=hint(column),
            )
        descriptions[folded] = column.description
