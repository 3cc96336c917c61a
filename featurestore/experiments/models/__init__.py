"""Models: registered with what they need, found again, and applied to features of any time."""

from __future__ import annotations

from featurestore.experiments.models.handle import Model

__all__ = ["Model"]
