"""Feature views: named, versioned retrievals that training and scoring share."""

from featurestore.views.handle import FeatureView

__all__ = ["FeatureView"]
