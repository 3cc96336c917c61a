"""Rows over HTTP: uploads to disk, and responses as Arrow streams."""
