"""Engine-independent aggregates over time windows, as of each label.

``kernel`` aggregates rows and labels that are sorted by key and time. ``chunk`` determines which
rows are in the windows of which labels, and ``arrays`` reduces them. ``counts`` and ``sums``
implement the aggregate functions, ``exact`` provides exact arithmetic. ``window_side`` processes a
sorted ``stream`` key by key, ``incremental`` processes keys that exceed memory. ``reference`` is an
independent, slow implementation for checks and tests. ``docs/window-aggregates.md`` explains the
rules and proves the algorithms.
"""
