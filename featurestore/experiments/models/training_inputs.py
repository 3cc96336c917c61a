"""The inputs of a run's model: how the run read its dataset, compared with what the model states.

A run records each reader and matrix of its training function. The readers of one run may differ,
and the record does not have the one that the model was trained with. The model decides if it states
its columns; otherwise the caller decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, listing
from featurestore.experiments.models.conversion import (
    FRAME,
    SAVED,
    plan_nulls,
    recorded_form,
    recorded_nulls,
)
from featurestore.experiments.models.predictors import column_positions
from featurestore.model.json_object import JsonMapping
from featurestore.model.names import mask_name
from featurestore.model.registered_model import FITTED_FLAVORS, ModelInput
from featurestore.training.reading import matrix_names
from featurestore.training.transformations import read_by_hash, resolve_transformations

if TYPE_CHECKING:
    from featurestore.experiments.models.registering import ModelRequest
    from featurestore.model.manifest import Manifest
    from featurestore.training.dataset import TrainingDataset
    from featurestore.transform.fitted import Transformations


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of a model in their order, with the transformations of its training.

    ``readers`` are the positions of the run's readers that yield them, empty without a reader.
    """

    inputs: tuple[ModelInput, ...]
    fitted: Transformations | None
    readers: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the inputs."""
        return tuple(model_input.name for model_input in self.inputs)


def resolve_inputs(
    dataset: TrainingDataset,
    request: ModelRequest,
    readers: Sequence[JsonMapping],
    *,
    flavor: str,
    stated: tuple[str, ...] | None,
    is_equal: Callable[[TrainingInputs], bool] | None = None,
) -> TrainingInputs:
    """Return the inputs with which the model of a run was trained.

    Args:
        dataset: The training dataset.
        request: The arguments of ``register_model``, which override the settings of the readers.
        readers: The states of the run's readers and matrices.
        flavor: The format of the model.
        stated: The columns that the model states, if any.
        is_equal: Whether the model predicts from some inputs what the run predicted; None if the
            run recorded no predictions.

    Raises:
        InvalidArgument: The readers differ in a setting that neither the model, its predictions nor
            the request decides, or the model states columns that no reader yields.
    """
    resolution = _Resolution(dataset, request, readers, flavor, stated)
    candidates = _distinct(resolution.candidates())
    if stated is not None:
        if request.nulls == "mask":
            resolution.check_masks(candidates, stated)
        selected = [resolution.select_stated(candidate, stated) for candidate in candidates]
        matching = [candidate for candidate in selected if candidate is not None]
        if not matching:
            raise resolution.contradiction_error(candidates, stated)
        candidates = _distinct(matching, ordered=False)
    if len(candidates) > 1 and is_equal is not None:
        candidates = list(filter(is_equal, candidates)) or candidates
    if len(candidates) > 1:
        raise resolution.ambiguity_error(candidates)
    return candidates[0]


@dataclass(frozen=True)
class _Resolution:
    """The training dataset, the request and the reads of a run, which decide a model's inputs."""

    dataset: TrainingDataset
    request: ModelRequest
    readers: Sequence[JsonMapping]
    flavor: str
    stated: tuple[str, ...] | None

    def candidates(self) -> Iterator[TrainingInputs]:
        """Yield the inputs of each reader that the request allows, or those of the whole dataset."""
        forms = [recorded_form(state) for state in self.readers]
        positions = [position for position, form in enumerate(forms) if form != SAVED]
        if self.request.reader is not None and self.request.reader not in positions:
            raise InvalidArgument(
                f"reader={self.request.reader!r} is not the position of a reader of the run. Available: "
                f"{', '.join(map(str, positions)) or 'none'}.",
                hint="the positions are those of run.record.readers",
            )
        if self.request.reader is not None:
            positions = [self.request.reader]
        elif self.flavor == "spark" and FRAME in forms:
            # Spark fits pipelines on DataFrames, not on arrays.
            positions = [position for position in positions if forms[position] == FRAME]
        if not positions:
            fitted = self.transformations({})
            yield TrainingInputs(self.model_inputs({}), fitted)
        for position in positions:
            fitted = self.transformations(self.readers[position])
            inputs = self.model_inputs(self.readers[position])
            yield TrainingInputs(inputs, fitted, (position,))

    def check_masks(self, candidates: Sequence[TrainingInputs], stated: Sequence[str]) -> None:
        """Refuse ``nulls="mask"`` for a model that neither read nor states masks.

        Raises:
            InvalidArgument: A null would be 0, and the model would not know it.
        """
        masks = {
            mask_name(model_input.name)
            for candidate in candidates
            for model_input in candidate.inputs
            if model_input.nulls == "mask"
        }
        has_masks = any(recorded_nulls(state) == "mask" for state in self.readers)
        if masks and masks.isdisjoint(stated) and not has_masks:
            raise InvalidArgument(
                f"nulls='mask' passes {listing(sorted(masks))} to the model, which states no masks: "
                f"{listing(stated, limit=50)}.",
                hint="nulls='nan' passes nulls as NaN, as in a matrix",
            )

    def select_stated(
        self, candidate: TrainingInputs, stated: Sequence[str]
    ) -> TrainingInputs | None:
        """Return a candidate with the inputs that a model states, None if they contradict it.

        A pickled model gets them in its order. Other models get them by name.
        """
        columns = _matrix_columns(candidate, self.dataset.manifest)
        owners = dict(columns) | {name: name for name in candidate.names}
        by_order = self.flavor in FITTED_FLAVORS
        own_names = [name for name in stated if name not in owners]
        if own_names:
            # Only the caller knows which columns the model's own names mean.
            has_other_columns = any(
                column.name in own_names for column in self.dataset.manifest.columns
            )
            if self.request.columns is None or has_other_columns or not by_order:
                return None
            positions = column_positions(stated, [name for name, _ in columns])
            return None if positions is None else candidate
        selected = tuple(dict.fromkeys(owners[name] for name in stated))
        if self.request.columns is not None:
            is_equal = selected == candidate.names
            if not by_order:
                is_equal = set(selected) == set(candidate.names)
            return candidate if is_equal else None
        if not by_order:
            selected = tuple(name for name in candidate.names if name in selected)
        inputs = {model_input.name: model_input for model_input in candidate.inputs}
        return replace(candidate, inputs=tuple(inputs[name] for name in selected))

    def contradiction_error(
        self, candidates: Sequence[TrainingInputs], stated: Sequence[str]
    ) -> InvalidArgument:
        """Return the error for a model whose columns differ from those of each candidate."""
        recorded = f"training dataset {self.dataset.name!r} has"
        if self.request.columns is not None:
            recorded = "columns= has"
        elif candidates[0].readers:
            recorded = "the run read"
        names = " or ".join(listing(candidate.names, limit=50) for candidate in candidates)
        roles = {column.name: column.role for column in self.dataset.manifest.columns}
        first_names = list(candidates[0].names)
        if any(roles.get(name) in ("label", "weight") for name in stated):
            hint = "fit the model without the label and the weight"
        elif all(name in roles for name in stated):
            hint = f"register_model(run, {self.request.name!r}, columns={list(stated)!r})"
        elif self.flavor in FITTED_FLAVORS and self.request.columns is not None:
            hint = "columns= lists the columns of its training in the order that the model states"
        elif self.flavor in FITTED_FLAVORS:
            hint = (
                f"register_model(run, {self.request.name!r}, columns={first_names!r}): the columns of its "
                "training in their order, if the model has its own names for them"
            )
        elif len(stated) == 1:
            hint = 'register_model(..., arrays="matrix"): the only input takes all columns'
        else:
            hint = "name the inputs of the network like the columns"
        return InvalidArgument(
            f"The model states the columns {listing(stated, limit=50)}, but {recorded} {names}.",
            hint=hint,
        )

    def ambiguity_error(self, candidates: Sequence[TrainingInputs]) -> InvalidArgument:
        """Return the error for readers that differ, with the settings in which they do."""
        settings = [_settings(candidate) for candidate in candidates]
        positions = [candidate.readers[0] for candidate in candidates]
        texts = []
        for position, own_settings in zip(positions, settings, strict=True):
            differing = [
                f"{name} {value}"
                for name, value in own_settings.items()
                if any(others[name] != value for others in settings)
            ]
            state = self.readers[position]
            title = f"reader={position} ({recorded_form(state)} of split {state.get('split')!r})"
            texts.append(f"{title} has {', '.join(differing)}")
        return InvalidArgument(
            f"The readers of the run differ, and the model does not state which one it was trained "
            f"with: {'; '.join(texts)}.",
            hint=f"register_model(run, {self.request.name!r}, reader={positions[0]}), or "
            + ", or ".join(f"reader={position}" for position in positions[1:]),
        )

    def transformations(self, state: JsonMapping) -> Transformations | None:
        """Return the requested transformations, or else those of the run's reader."""
        transformed = self.request.transformed
        if transformed is None and "transformed" in state:
            if state["transformed"] is None:
                return None
            return read_by_hash(self.dataset.path, self.dataset.manifest, state["transformed"])
        if transformed is None and self.dataset.transformations is not None:
            raise InvalidArgument(
                f"Training dataset {self.dataset.name!r} has transformations, and the run read it without a "
                "reader or matrix, so it is unknown whether its model needs transformed values.",
                hint="register_model(run, name, transformed=True), or transformed=False for a model "
                "of stored values",
            )
        return resolve_transformations(self.dataset, transformed)

    def model_inputs(self, state: JsonMapping) -> tuple[ModelInput, ...]:
        """Return the inputs in reader order, with the reader's null policy."""
        columns = self.request.columns
        if columns is None:
            columns = state.get("columns")
        manifest = self.dataset.manifest
        if columns is None:
            columns = [column.name for column in manifest.columns if column.role == "feature"]
            if not state or recorded_form(state) == FRAME:
                # A DataFrame also has keys and unused columns, of which the function selects some.
                names = [
                    column.name for column in manifest.columns if column.name in (self.stated or ())
                ]
                columns += [name for name in names if name not in columns]
        names = [name for name in columns if manifest.column(name).role not in ("label", "weight")]
        if not names:
            raise InvalidArgument(f"Training dataset {manifest.name!r} has no inputs.")
        nulls = plan_nulls(manifest, names, requested=self.request.nulls, state=state)
        inputs = []
        for name in names:
            column = manifest.column(name)
            # The training files store this column as float32, so scoring must round its inputs as well.
            narrow = column.tf_type == "float32"
            inputs.append(ModelInput(name, column.type, narrow, *nulls[name]))
        return tuple(inputs)


def _distinct(
    candidates: Iterable[TrainingInputs], *, ordered: bool = True
) -> list[TrainingInputs]:
    """Merge candidates with equal settings.

    Args:
        candidates: The candidates.
        ordered: Whether candidates with the same inputs in another order differ.
    """
    merged: list[TrainingInputs] = []
    settings: list[tuple[Any, str | None]] = []
    for candidate in candidates:
        inputs = candidate.inputs
        if not ordered:
            inputs = tuple(sorted(inputs, key=lambda model_input: model_input.name))
        setting = inputs, None if candidate.fitted is None else candidate.fitted.sha256
        if setting not in settings:
            settings.append(setting)
            merged.append(candidate)
            continue
        position = settings.index(setting)
        readers = (*merged[position].readers, *candidate.readers)
        merged[position] = replace(merged[position], readers=readers)
    return merged


def _matrix_columns(candidate: TrainingInputs, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the columns of a candidate's matrix, each with the name of its input."""
    names_by_input = matrix_names(manifest, candidate.names, candidate.fitted)
    columns = []
    for model_input in candidate.inputs:
        names = names_by_input[model_input.name]
        if model_input.nulls == "mask":
            names = [*names, mask_name(model_input.name)]
        columns += [(name, model_input.name) for name in names]
    return columns


def _settings(candidate: TrainingInputs) -> dict[str, str]:
    """Return the settings of a candidate as texts."""
    nulls = {
        model_input.name: repr(model_input.fill)
        if model_input.nulls == "fill"
        else model_input.nulls
        for model_input in candidate.inputs
        if model_input.nulls != "error"
    }
    fitted = candidate.fitted
    return {
        "columns": listing(candidate.names, limit=50),
        "nulls": ", ".join(f"{name}: {nulls[name]}" for name in sorted(nulls)) or "refused",
        "transformed": "False" if fitted is None else f"by {fitted.sha256[:12]}",
    }
