"""The command line, one module for each noun: parse, one library call, print."""

from __future__ import annotations

from featurestore._imports import uninterrupted

with uninterrupted():
    from featurestore.cli.main import app, main

__all__ = ["app", "main"]
