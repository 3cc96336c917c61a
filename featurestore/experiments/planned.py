"""Studies with a fixed list of trials: cross-validations and ablations.

An ablation measures the effect of each feature, feature group or layer on a metric.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, InvalidMetric, RunFailed, listing
from featurestore.experiments import catalog, launching, status
from featurestore.experiments.study import StudyRequest, finish_pool
from featurestore.experiments.tasks import Fold
from featurestore.experiments.trials import Proposal
from featurestore.model import display
from featurestore.model.json_object import JsonDict, JsonMapping
from featurestore.model.records import Record
from featurestore.model.run_record import RunRecord
from featurestore.plugins.launcher import find_launcher
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from featurestore.session import Session

# 0.975 quantiles of Student's t by degrees of freedom, from 1; beyond, the normal quantile.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
_NORMAL = 1.96


@dataclass(frozen=True)
class FoldDesign:
    """A trial for each fold of a split, whose rows the split ``held_out`` has in that trial."""

    folds: int
    split: str
    held_out: str


@dataclass(frozen=True)
class AblationDesign:
    """A trial of the full model, and one without each component, for each of several seeds."""

    features: str | Sequence[Any] | Mapping[str, Sequence[str]] | None
    layers: Sequence[str] | None
    metric: str
    direction: str
    repeats: int


def run_planned(
    session: Session, request: StudyRequest[object], plan: PlannedTrials, settings: JsonMapping
) -> tuple[RunRecord, list[RunRecord]]:
    """Run all trials of a plan and return the study record and the trial records."""
    launch = request.launch
    if launch.dataset is None:
        raise InvalidArgument(f"{launch.kind} needs dataset=.")
    request.check_parallel()
    launcher = find_launcher(launch.on)
    dumped = request.dump_function(launcher, launch.params)
    study_settings = {
        "on": launcher.name,
        "parallel": request.parallel,
        "metric": plan.metric,
        **settings,
    }
    record = launching.new_record(launch, settings=study_settings)
    directory = catalog.run_directory(session, record)
    session.storage.make_directory(directory)
    # Other processes show the study as running as long as this one has the lock.
    with status.lock_driver(directory):
        catalog.save(session, record)
        finish_pool(session, record, request.trial_pool(session, record, dumped, plan))
        trials = catalog.find(session, parent=record.id)
        record = record.end("finished")
        catalog.save(session, record)
    return record, trials


@dataclass
class PlannedTrials:
    """Trials in a fixed order. Each must report ``metric``, unless it is None."""

    plan: Sequence[Proposal]
    metric: str | None
    next_index: int = 0

    def next(self) -> Proposal | None:
        """Return the next trial."""
        if self.next_index == len(self.plan):
            return None
        self.next_index += 1
        return self.plan[self.next_index - 1]

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Return False: no trial is stopped early."""
        return False

    def ended(self, record: RunRecord) -> None:
        """Raise an error if a trial failed, since the comparison needs all trials."""
        if record.state != "finished":
            raise RunFailed(
                f"Trial {record.number} ({record.id!r}) {record.state}: {record.reason}",
                hint=f"featurestore run logs {record.id}",
            )
        if self.metric is not None and self.metric not in record.metrics:
            raise InvalidMetric(
                f"The trial {record.id!r} finished without metric {self.metric!r}; it reported "
                f"{listing(sorted(record.metrics))}.",
                hint=f"return {{{self.metric!r}: ...}}",
            )


def cross_validate(session: Session, request: StudyRequest[FoldDesign]) -> CrossValidation:
    """Train once for each fold on the rows of the other folds."""
    design, dataset = request.design, request.launch.dataset
    folds, split, held_out = design.folds, design.split, design.held_out
    launching.check_integer("folds", folds, minimum=2, maximum=1000)
    if not isinstance(dataset, TrainingDataset):
        raise InvalidArgument("cross_validate needs dataset=.")
    rows = dataset.num_rows(split)
    if rows < folds:
        raise InvalidArgument(f"Split {split!r} has {rows} rows, fewer than {folds} folds.")
    if held_out == split:
        raise InvalidArgument(
            f"held_out={held_out!r} must differ from split={split!r}, which is divided into folds.",
            hint='held_out="validation"',
        )
    plan: list[Proposal] = []
    for number in range(folds):
        fold: JsonDict = Fold(split, held_out, number, folds).to_json()
        settings = {"fold": fold}
        launch = request.launch
        plan.append(Proposal(number, launch.params or {}, seed=launch.seed, settings=settings))
    record, trials = run_planned(session, request, PlannedTrials(plan, None), vars(design))
    ids = tuple(trial.id for trial in trials)
    return CrossValidation(record.id, ids, tuple(trial.metrics for trial in trials))


@dataclass(frozen=True)
class CrossValidation:
    """The metrics of all folds.

    ``runs`` contains the run ids and ``folds`` the metrics, both in fold order.
    """

    id: str
    runs: tuple[str, ...]
    folds: tuple[Mapping[str, float], ...]

    __repr__ = display.record_repr

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric across folds."""
        return {name: statistics.fmean(values) for name, values in self._by_metric().items()}

    @property
    def std(self) -> dict[str, float]:
        """The sample standard deviation (n - 1) of each metric across folds."""
        return {name: statistics.stdev(values) for name, values in self._by_metric().items()}

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each fold."""
        import pandas as pd

        return pd.DataFrame([dict(fold) for fold in self.folds])

    def __str__(self) -> str:
        std = self.std
        return "\n".join(
            f"{name}: {mean:.4g} +- {std[name]:.4g}" for name, mean in self.mean.items()
        )

    def _repr_html_(self) -> str:
        return display.records_table([dict(fold) for fold in self.folds])

    def _by_metric(self) -> dict[str, list[float]]:
        values = {}
        # A mean needs a value from every fold.
        for name in sorted(set(self.folds[0]).intersection(*self.folds)):
            values[name] = [fold[name] for fold in self.folds]
        return values


def ablate(session: Session, request: StudyRequest[AblationDesign]) -> Ablation:
    """Train the full model and a model without each component per seed, and compare them."""
    design, launch, dataset = request.design, request.launch, request.launch.dataset
    if not isinstance(dataset, TrainingDataset):
        raise InvalidArgument("ablate needs dataset=.", hint="dataset=store.get_training_dataset()")
    if design.direction not in ("max", "min"):
        raise InvalidArgument(f"direction={design.direction!r} is neither 'max' nor 'min'.")
    launching.check_integer("repeats", design.repeats, minimum=1, maximum=1000)
    ablated_components = components(dataset, design.features, design.layers)
    plan: list[Proposal] = []
    for component in (Component("whole"), *ablated_components):
        for repeat in range(design.repeats):
            trial_settings = {
                "component": component.name,
                "without": list(component.features),
                "without_layers": list(component.layers),
            }
            # The full model and each component are trained with the same seeds: initial weights and
            # row order are equal, so a difference is the effect of the component.
            seed = launch.seed + repeat
            plan.append(
                Proposal(len(plan), launch.params or {}, seed=seed, settings=trial_settings)
            )
    study_settings = {
        "direction": design.direction,
        "repeats": design.repeats,
        "components": [vars(c) for c in ablated_components],
    }
    planned_trials = PlannedTrials(plan, design.metric)
    record, trials = run_planned(session, request, planned_trials, study_settings)
    return build_ablation(session, record, trials, metric=design.metric, direction=design.direction)


@dataclass(frozen=True)
class Ablation:
    """The results of an ablation, largest effect first."""

    id: str
    metric: str
    whole: tuple[float, ...]
    rows: tuple[ComponentEffect, ...]
    session: Session = field(repr=False, compare=False)

    __repr__ = display.record_repr

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each component."""
        import pandas as pd

        return pd.DataFrame([row.to_json() for row in self.rows])

    def __str__(self) -> str:
        full_model_mean = statistics.fmean(self.whole)
        width = max(len(row.name) for row in self.rows)
        header = f"{self.metric} of the full model: {full_model_mean:.4g}; degradation without:"
        lines = [f"  {row.name:<{width}}  {row.mean:+.4g}  {row.interval}" for row in self.rows]
        return "\n".join([header, *lines])

    def _repr_html_(self) -> str:
        return display.records_table([row.to_json() for row in self.rows])

    def plot(self) -> Figure:
        """Plot a bar for each component, with its confidence interval."""
        from featurestore.statistics.plots.panels import draw_intervals

        return draw_intervals(
            [(row.name, row.mean, row.low, row.high) for row in self.rows],
            label=f"{self.metric}: degradation without the component, mean and 95 % interval",
        )


@dataclass(frozen=True)
class Component:
    """A component to ablate: dataset features, or a model layer."""

    name: str
    features: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComponentEffect(Record):
    """The effect of removing a component: how much worse the metric becomes.

    ``mean`` averages the repeats, each compared with the full model of the same seed. ``low`` and
    ``high`` are the 95 % confidence interval of the mean, None for a single repeat.
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    __repr__ = display.record_repr

    @property
    def interval(self) -> str:
        """The confidence interval as a string.

        >>> component_effect("temp", [0.1]).interval
        'no interval'
        """
        if self.low is None or self.high is None:
            return "no interval"
        return f"[{self.low:+.4g}, {self.high:+.4g}]"


def components(
    dataset: TrainingDataset,
    features: str | Sequence[Any] | Mapping[str, Sequence[str]] | None,
    layers: Sequence[str] | None,
) -> list[Component]:
    """Return the components to ablate, in trial order.

    Raises:
        InvalidArgument: A feature is not an input of the dataset, or there are no components.
    """
    ablated_components = [
        Component(name, features=names)
        for name, names in _group_features(dataset, features).items()
    ]
    ablated_components += [Component(f"layer {layer}", layers=(layer,)) for layer in layers or ()]
    for component in ablated_components:
        launching.check_features(dataset, component.features)
    if not ablated_components:
        raise InvalidArgument(
            f"features={features!r} and layers={layers!r} contain no component to ablate.",
            hint="features='each', 'groups' or lists of names; layers=['dropout']",
        )
    return ablated_components


def _group_features(dataset: TrainingDataset, features: Any) -> dict[str, tuple[str, ...]]:
    """Return the features of each component to ablate, by component name."""
    inputs = dataset.roles.inputs
    if features is None:
        return {}
    if features == "each":
        return {name: (name,) for name in inputs}
    if features == "groups":
        return features_by_group(dataset)
    if isinstance(features, str):
        raise InvalidArgument(f"features={features!r} is not 'each', 'groups' or lists of names.")
    if isinstance(features, Mapping):
        return {str(name): tuple(names) for name, names in features.items()}
    groups = {}
    for feature in features:
        names = (feature,) if isinstance(feature, str) else tuple(feature)
        # The names are the keys of trials, so two equal groups could not be distinguished.
        if " + ".join(names) in groups:
            raise InvalidArgument(f"features={features!r} contains {' + '.join(names)!r} twice.")
        groups[" + ".join(names)] = names
    return groups


def features_by_group(dataset: TrainingDataset) -> dict[str, tuple[str, ...]]:
    """Return the inputs of a dataset by their feature group.

    >>> features_by_group(store.get_training_dataset("late_flights"))
    {'weather': ('temp',), 'planes': ('seats',)}
    """
    inputs = dataset.roles.inputs
    inputs_by_group: dict[str, list[str]] = {}
    plan: Any = dataset.manifest.plan
    while plan is not None:
        for join in [*plan.get("windows", ()), *plan["joins"]]:
            for output in join["outputs"]:
                if output["name"] in inputs:
                    inputs_by_group.setdefault(str(join["source"]["featuregroup"]), []).append(
                        output["name"]
                    )
        # Each chained ``get_features`` call has the previous call as the plan of its labels.
        plan = plan.get("left_plan")
    grouped_inputs = {name for names in inputs_by_group.values() for name in names}
    ungrouped_inputs = [name for name in inputs if name not in grouped_inputs]
    if not inputs_by_group:
        raise InvalidArgument(
            f"{dataset.name!r} was not created from feature groups. Its inputs: {listing(inputs)}.",
            hint="features='each', or lists of names",
        )
    groups = {name: tuple(names) for name, names in inputs_by_group.items()}
    if ungrouped_inputs:
        groups["labels"] = tuple(ungrouped_inputs)
    return groups


def build_ablation(
    session: Session, record: RunRecord, trials: Sequence[RunRecord], *, metric: str, direction: str
) -> Ablation:
    """Build the result table of an ablation from its trial records."""
    sign = 1.0 if direction == "max" else -1.0
    values: dict[str, dict[int, float]] = {}
    for trial in trials:
        by_seed = values.setdefault(str(trial.settings["component"]), {})
        by_seed[trial.seed] = trial.metrics[metric]
    full_model_by_seed = values.pop("whole")
    seeds = sorted(full_model_by_seed)
    rows = []
    for name, by_seed in values.items():
        # Positive if the metric becomes worse without the component, for both directions.
        changes = [sign * (full_model_by_seed[seed] - by_seed[seed]) for seed in seeds]
        rows.append(component_effect(name, changes))
    rows.sort(key=lambda row: (-row.mean, row.name))
    full_model_values = tuple(full_model_by_seed[seed] for seed in seeds)
    return Ablation(record.id, metric, full_model_values, tuple(rows), session)


def component_effect(name: str, changes: Sequence[float]) -> ComponentEffect:
    """Return the mean of the changes across repeats, with its 95 % confidence interval.

    >>> effect = component_effect("temp", [0.1, 0.2, 0.3])
    >>> round(effect.mean, 3), round(effect.low, 3), round(effect.high, 3)
    (0.2, -0.048, 0.448)
    """
    mean = statistics.fmean(changes)
    freedom = len(changes) - 1
    # A single value has no standard deviation.
    if not freedom:
        return ComponentEffect(name, mean, None, None, tuple(changes))
    # With more than 14 repeats the quantiles differ by less than 10 percent from the normal one.
    quantile = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    half = quantile * statistics.stdev(changes) / math.sqrt(len(changes))
    return ComponentEffect(name, mean, mean - half, mean + half, tuple(changes))
