"""Stack inspection: warnings at the line of the caller, and frames of other libraries."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from types import FrameType
from typing import Any

_WRAPPER = "featurestore.model.arguments"
_INTERNAL_PREFIXES = ("featurestore.", "featurestore_connectors.", "functools", "contextlib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the position of the first frame outside this library."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
        name = frame.f_globals.get("__name__", "")
        if name != "featurestore" and not name.startswith(_INTERNAL_PREFIXES):
            break
    warnings.warn(message, category, stacklevel=depth)


def calling_globals() -> dict[str, Any]:
    """Return the globals of the caller of the calling function."""
    frame = sys._getframe(2)
    # Skip the wrapper of public calls (``model.arguments``).
    while frame.f_globals.get("__name__") == _WRAPPER and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals


def calling_frame(functions: Collection[str], packages: Collection[str]) -> FrameType | None:
    """Return the nearest frame of one of these functions and packages.

    Returns None if a frame of another package comes first.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package in packages and frame.f_code.co_name in functions:
            return frame
        if package not in packages and package != "featurestore":
            return None
        frame = frame.f_back
    return None
