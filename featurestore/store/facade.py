"""FeatureStore, the facade: each method calls one package; the calls of a family are a module."""

from __future__ import annotations

from featurestore.store.featuregroups import FeatureGroupCalls
from featurestore.store.features import FeatureCalls, FeatureViewCalls
from featurestore.store.insight import InsightCalls
from featurestore.store.jobs import AlertCalls, MonitorCalls
from featurestore.store.sources import SourceCalls
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
):
    """A connection to one store.

    Every call exists as a function of the module ``featurestore``, too.
    """

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FeatureStore(location={self.location!r}, engine={self.engine!r})"
