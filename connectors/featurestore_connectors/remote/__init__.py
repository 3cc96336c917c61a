"""Clients of ``featurestore serve``: records by REST, rows as Arrow streams over HTTP."""

from featurestore_connectors.remote.client import HttpClient

__all__ = ["HttpClient"]
