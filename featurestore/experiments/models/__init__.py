"""Registered models, with their features and point-in-time predictions."""

from __future__ import annotations

from featurestore.experiments.models.catalog import Model

__all__ = ["Model"]
