"""The history of the registry's tables.

A file of ``versions`` is named by its number, which is its revision, too: ``0002_jobs.py`` has
revision "0002" and follows "0001". A released file is never changed.
"""
