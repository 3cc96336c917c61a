"""HTTP client of ``featurestore serve``: records as JSON, rows as Arrow streams."""

from featurestore_connectors.remote.client import HttpClient

__all__ = ["HttpClient"]
