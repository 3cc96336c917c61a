"""Aggregates over time windows as of every label: pure arithmetic, independent of the engines.

``kernel`` aggregates rows and labels that are sorted by key and time, ``exact`` adds numbers
without an error, ``ranges`` says which rows count for which labels. ``docs/aggregates.md`` holds
the rules and why they are right.
"""
