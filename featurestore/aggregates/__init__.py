"""Aggregates over time windows as of every label, independent of the engines.

``kernel`` aggregates rows and labels that are sorted by key and time. ``chunk`` computes which rows
are in the windows of which labels, ``arrays`` reduces them; ``counts`` and ``sums`` implement the
functions; ``exact`` provides exact arithmetic. ``window_side`` processes a sorted ``stream`` key by
key, ``incremental`` keys that exceed memory. ``reference`` is an independent, slow implementation
for tests and checks. ``docs/window-aggregates.md`` explains the rules and proves the algorithms.
"""
