"""Model inputs of a training dataset: transformations, Keras input layers and preprocessors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from featurestore.errors import InvalidArgument, did_you_mean, listing

if TYPE_CHECKING:
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations

FRAMEWORKS = ("numpy", "keras", "tf_keras", "torch")


class ModelInputs:
    """The methods of a training dataset that prepare columns for a model."""

    @property
    def transformations(self) -> Transformations | None:
        """The transformations that the dataset was created with, if any.

        >>> from featurestore import transform as t
        >>> frame = store.get_features(["weather.temp", "planes.seats"], labels="questions")
        >>> dataset = store.create_training_dataset(
        ...     frame, "scaled", label="late", transformations={"seats": t.min_max()}
        ... )
        Training dataset 'scaled' version 1
        ...
        >>> dataset.transformations
        input  rule                         fitted on train        output
        seats  min_max(low=0.0, high=1.0)  (x - 100) * 0.01       float32
        """
        from featurestore.training.transformations import read_registered

        # This is a base class of TrainingDataset, so importing it here would be circular.
        dataset = cast("TrainingDataset", self)
        return read_registered(dataset.path, dataset.manifest)

    def fit(self, transformations: Mapping[str, Any], *, fit_on: str = "train") -> Transformations:
        """Fit transformations on one split, store them with the dataset and return them.

        The data files and the manifest do not change; a dataset may have several fits.

        Args:
            transformations: ``{column: chain of featurestore.transform}``.
            fit_on: The split to fit on; no other split is read.

        Raises:
            InvalidArgument: A chain does not support its column, or the split has no values.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> fitted = dataset.fit({"temp": t.standardize(), "seats": t.vocabulary(unknown=1)})
        >>> reader = dataset.reader("train", global_batch_size=2, transformed=fitted)
        >>> next(reader.batches())["seats"].tolist()
        [2, 3]
        """
        from featurestore.training.transformations import fit_dataset

        return fit_dataset(cast("TrainingDataset", self), transformations, fit_on=fit_on)

    def preprocessor(
        self, framework: str = "numpy", *, transformed: Transformations | None = None
    ) -> Any:
        """Return the transformations as a preprocessor for serving a model.

        Args:
            framework: "numpy": a callable over ``{column: array}``; "keras" or "tf_keras": a layer
                over a dict of tensors, which is self-contained and saved with a model;
                "torch": a module over ``{column: tensor, or list of strings}``.
            transformed: A result of ``fit``; None means the transformations that the dataset was
                created with.

        >>> from featurestore import transform as t
        >>> dataset = store.get_training_dataset("late_flights")
        >>> fitted = dataset.fit({"seats": t.min_max()})
        >>> preprocess = dataset.preprocessor(transformed=fitted)
        >>> preprocess({"seats": [150], "temp": [38.0]})
        {'seats': array([0.5], dtype=float32), 'temp': [38.0]}
        >>> print(repr(preprocess).splitlines()[0])
        Preprocessor of {column: array}:
        """
        from featurestore.training.transformations import resolve_transformations

        if framework not in FRAMEWORKS:
            raise InvalidArgument(
                f"framework={framework!r} is not one of {listing(FRAMEWORKS)}.",
                hint=did_you_mean(framework, FRAMEWORKS, write="framework={!r}"),
            )
        # ``transformed or True`` rejects datasets without transformations: a preprocessor would do
        # nothing.
        fitted = resolve_transformations(cast("TrainingDataset", self), transformed or True)
        assert fitted is not None
        if framework == "numpy":
            from featurestore.transform.fitted import Preprocessor

            return Preprocessor(fitted)
        if framework == "torch":
            from featurestore.transform.torch import preprocessor_module

            return preprocessor_module(fitted)
        from featurestore.transform.keras import preprocessor_layer

        return preprocessor_layer(fitted, framework)

    def keras_inputs(
        self,
        *,
        columns: Sequence[str] | None = None,
        nulls: Any = "error",
        transformed: bool | Transformations | None = None,
        framework: str = "keras",
    ) -> dict[str, Any]:
        """Return a Keras input layer for each feature that ``reader.tf_dataset`` yields.

        Args:
            columns: As in ``reader``.
            nulls: As in ``reader``; "mask" adds the inputs ``<column>_present``.
            transformed: As in ``reader``; False returns the inputs of a model with a preprocessor.
            framework: "keras" or "tf_keras".

        >>> dataset = store.get_training_dataset("late_flights")
        >>> inputs = dataset.keras_inputs()  # doctest: +SKIP
        >>> {name: (tensor.shape, tensor.dtype) for name, tensor in inputs.items()}  # doctest: +SKIP
        {'temp': ((None,), 'float64'), 'seats': ((None,), 'int64')}
        """
        from featurestore.readers.transformed import feature_forms
        from featurestore.training.reading import check_reader_inputs
        from featurestore.training.transformations import resolve_transformations
        from featurestore.transform.keras import input_layers

        dataset = cast("TrainingDataset", self)
        transform = resolve_transformations(dataset, transformed)
        check_reader_inputs(dataset.manifest, columns, transform)
        forms = feature_forms(dataset.manifest, columns=columns, nulls=nulls, transform=transform)
        return input_layers(forms, framework)
