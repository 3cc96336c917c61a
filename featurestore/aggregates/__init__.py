"""Aggregates over time windows as of every label: pure arithmetic, independent of the engines.

``kernel`` aggregates rows and labels that are sorted by key and time. ``ranges`` says which rows
count for which labels, and ``windows`` what labels see of them; ``counts``, ``sums`` and
``extremes`` hold the functions; ``exact``, ``pairs``, ``rounding`` and ``variance`` add numbers
without an error. ``stream`` takes whole keys from a sorted stream, ``carried`` keys that are too
large for that. ``by_row`` answers the same by other code. ``docs/window-aggregates.md`` holds the
rules and why they are right.
"""
