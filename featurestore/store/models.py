"""Calls that apply registered models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from featurestore.experiments.models import Model
    from featurestore.retrieval import FeatureFrame

__all__ = ["ModelCalls"]


class ModelCalls(StoreBase):
    """The calls on registered models."""

    def score(
        self,
        model: Model | str,
        *,
        labels: object,
        label_time: datetime | str | None = None,
        as_of: datetime | str | Mapping[str, int | datetime | str] | None = None,
        featuregroup: str | None = None,
        key: str | Sequence[str] = (),
        trust: bool = False,
    ) -> FeatureFrame:
        """Return labels with the predictions of a model, from features as of each label's time.

        The rows have the columns of the labels, ``prediction`` (``prediction_<output>`` of several
        outputs) and ``model_version``; of one ``label_time`` for all rows also ``label_time``. They
        are computed lazily by the engine, again at each reading.

        Args:
            model: A registered model, or its name: the latest version.
            labels: A dataframe, a FeatureFrame or the name of a group, with the columns of
                ``model.label_columns``.
            label_time: Their time column, or one time for all rows.
            as_of: Read the store as it was at a time, or ``{group: Delta version or time}``.
            featuregroup: Also write the predictions into this group, which is made where there is
                none: a prediction for the same key and time takes the place of the one before.
            key: The primary key of a new group; else what the features are joined on.
            trust: Allow the model's files to run code, as ``model.load``.

        Raises:
            ModelNotFound: The model does not exist.
            UntrustedModel: Loading it runs code, and ``trust`` is False.
            FeatureNotFound: The labels lack inputs that no group has.
            NullsInColumns: Features are missing that the model cannot do without.

        >>> store.score("late_flights", labels="questions")
        Traceback (most recent call last):
        featurestore.errors.ModelNotFound: Unknown model 'late_flights'. Available: none. ...
        """
        from featurestore.experiments.models import scoring
        from featurestore.experiments.record_api import get_model

        if isinstance(model, str):
            model = get_model(model, store=self)  # type: ignore[arg-type]
        scored = scoring.score(
            model, labels=labels, label_time=label_time, as_of=as_of, trust=trust
        )
        if featuregroup is not None:
            features = scoring.features_of(model, labels=labels, label_time=label_time, as_of=as_of)
            keys = (key,) if isinstance(key, str) else tuple(key)
            scoring.write_predictions(model, scored, features, featuregroup, key=keys)
        return scored
