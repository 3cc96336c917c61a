"""How many processor cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores that this process may run on.

    A container or a batch system may give it fewer than there are, and so may ``PYTHON_CPU_COUNT``
    where Python knows it.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
