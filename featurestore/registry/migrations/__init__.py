"""The migrations of the registry's tables.

A file of ``versions`` is named by its revision: ``0101_jobs.py`` has revision "0101" and follows
"0100". A released file is never changed.
"""
