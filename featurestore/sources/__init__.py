"""Registered sources of rows, and frames over them."""

from __future__ import annotations

from featurestore.sources.catalogs import register_groups
from featurestore.sources.checking import check
from featurestore.sources.frame import SourceFrame, build_query, define_external, read_source
from featurestore.sources.registration import add, every, remove

__all__ = [
    "SourceFrame",
    "add",
    "build_query",
    "check",
    "define_external",
    "every",
    "read_source",
    "register_groups",
    "remove",
]
