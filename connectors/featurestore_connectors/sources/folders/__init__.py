"""Folders of files, read as one table with one dialect and one schema."""
