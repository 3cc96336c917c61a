"""Horizontal bar charts with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from featurestore.errors import missing_extra
from featurestore.model.printable import printable_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR = "#4878cf"
_MAX_LABEL = 40


def draw_intervals(
    rows: Sequence[tuple[str, float, float | None, float | None]], *, label: str
) -> Figure:
    """Return a figure with a bar for each (name, value, low, high), the first one on top.

    Args:
        rows: The bars; ``low`` and ``high`` are None without an interval.
        label: The label of the value axis.
    """
    try:
        import matplotlib.pyplot as plt  # notebooks draw figures once it is loaded
    except ImportError as error:
        raise missing_extra("matplotlib", "plots") from error

    figure = plt.figure(figsize=(8, 1 + 0.35 * len(rows)), layout="constrained")
    plt.close(figure)
    axes = figure.subplots()
    names = []
    for position, (name, value, low, high) in enumerate(rows):
        label_text = printable_line(name)
        if len(label_text) > _MAX_LABEL:
            label_text = f"{label_text[: _MAX_LABEL - 1]}…"
        names.append(label_text.replace("$", r"\$"))
        axes.barh(position, value, color=_COLOUR, height=0.7)
        if low is not None and high is not None:
            error_sizes = [[value - low], [high - value]]
            axes.errorbar(value, position, xerr=error_sizes, color="black", capsize=3, linewidth=1)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
