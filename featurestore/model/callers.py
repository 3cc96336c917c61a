"""Who calls: warnings that point at the line of the caller, and frames of other libraries."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from types import FrameType
from typing import Any

_WRAPPER = "featurestore.model.arguments"
_OWN = ("featurestore.", "featurestore_connectors.", "functools", "contextlib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside of this library that made the call."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
        name = frame.f_globals.get("__name__", "")
        if name != "featurestore" and not name.startswith(_OWN):
            break
    warnings.warn(message, category, stacklevel=depth)


def calling_globals() -> dict[str, Any]:
    """Return the globals of the module that called the function which asks."""
    frame = sys._getframe(2)
    # Public calls are wrapped (``model.arguments``), which is no caller.
    while frame.f_globals.get("__name__") == _WRAPPER and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals


def calling_frame(functions: Collection[str], packages: Collection[str]) -> FrameType | None:
    """Return the frame of a function with one of these names that calls this library.

    None where the nearest caller outside of this library and these packages comes first.
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
