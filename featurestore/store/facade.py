"""The class FeatureStore: a facade that combines the method mixins, one per subject."""

from __future__ import annotations

from featurestore.store.erasure import ErasureCalls
from featurestore.store.featuregroups import FeatureGroupCalls
from featurestore.store.features import FeatureCalls, FeatureViewCalls
from featurestore.store.insight import InsightCalls
from featurestore.store.jobs import AlertCalls, MonitorCalls, ProjectCalls
from featurestore.store.sources import CatalogCalls, DbtCalls, OnlineStoreCalls, SourceCalls
from featurestore.store.training_datasets import ModelCalls, TrainingDatasetCalls

__all__ = ["FeatureStore"]


class FeatureStore(
    FeatureGroupCalls,
    FeatureCalls,
    FeatureViewCalls,
    TrainingDatasetCalls,
    InsightCalls,
    MonitorCalls,
    ModelCalls,
    AlertCalls,
    SourceCalls,
    CatalogCalls,
    DbtCalls,
    OnlineStoreCalls,
    ProjectCalls,
    ErasureCalls,
):
    """A connection to a store.

    Each method is also available as a function in the module ``featurestore``.
    """

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FeatureStore(location={self.location!r}, engine={self.engine!r})"
