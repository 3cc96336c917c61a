"""Leaving one component out: what each feature, group of features or layer is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from featurestore.errors import InvalidArgument, listing
from featurestore.experiments.launching import LaunchRequest, check_features, check_whole
from featurestore.experiments.planned import run_planned
from featurestore.experiments.trials import Proposal
from featurestore.model import html
from featurestore.model.run_record import RunRecord
from featurestore.training.dataset import TrainingDataset

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from featurestore.session import Session

# Quantiles of Student's t at 0.975 by degrees of freedom, from 1; beyond them the normal one.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
_NORMAL = 1.96


@dataclass(frozen=True)
class Component:
    """Something that is left out: features of the dataset, or a layer of the model."""

    name: str
    features: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Worth:
    """What a component is worth: by how much the metric is worse without it.

    ``mean`` is over the repeats, each compared with the whole model of the same seed; ``low`` and
    ``high`` are the interval that contains the true mean with 95 %, None for a single repeat.
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def interval(self) -> str:
        """The interval as text.

        >>> worth_of("temp", [0.1]).interval
        'no interval'
        """
        if self.low is None or self.high is None:
            return "no interval"
        return f"[{self.low:+.4g}, {self.high:+.4g}]"

    def to_json(self) -> dict[str, Any]:
        """Return the worth as JSON."""
        return {**vars(self), "values": list(self.values)}


@dataclass(frozen=True)
class Ablation:
    """The table of an ablation, the component worth most first."""

    id: str
    metric: str
    whole: tuple[float, ...]
    rows: tuple[Worth, ...]
    session: Session = field(repr=False, compare=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each component."""
        import pandas as pd

        return pd.DataFrame([row.to_json() for row in self.rows])

    def __str__(self) -> str:
        whole = statistics.fmean(self.whole)
        width = max(len(row.name) for row in self.rows)
        lines = [f"{self.metric} of the whole: {whole:.4g}; worse without"]
        for row in self.rows:
            lines.append(f"  {row.name:<{width}}  {row.mean:+.4g}  {row.interval}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        shown = [row.to_json() for row in self.rows]
        return html.records(shown)

    def plot(self) -> Figure:
        """Return a bar for each component, with its interval."""
        from featurestore.statistics.plots.bars import draw_intervals

        return draw_intervals(
            [(row.name, row.mean, row.low, row.high) for row in self.rows],
            label=f"{self.metric}: worse without, mean and 95 % interval",
        )


def ablate(
    session: Session,
    request: LaunchRequest,
    *,
    features: str | Sequence[Any] | Mapping[str, Sequence[str]] | None,
    layers: Sequence[str] | None,
    metric: str,
    direction: str,
    repeats: int,
    parallel: int,
) -> Ablation:
    """Run the whole model and one without each component, for each seed, and compare."""
    dataset = request.dataset
    if not isinstance(dataset, TrainingDataset):
        raise InvalidArgument("ablate needs dataset=.", hint="dataset=store.get_training_dataset()")
    if direction not in ("max", "min"):
        raise InvalidArgument(f"direction={direction!r} is neither 'max' nor 'min'.")
    check_whole("repeats", repeats, least=1, most=1000)
    found = components(dataset, features, layers)
    plan: list[Proposal] = []
    for component in (Component("whole"), *found):
        for repeat in range(repeats):
            left_out = {
                "component": component.name,
                "without": list(component.features),
                "without_layers": list(component.layers),
            }
            seed = request.seed + repeat
            plan.append(Proposal(len(plan), request.params, seed=seed, settings=left_out))
    told = {"direction": direction, "repeats": repeats, "components": [vars(c) for c in found]}
    record, trials = run_planned(
        session, request, plan, parallel=parallel, metric=metric, settings=told
    )
    return table_of(session, record, trials, metric=metric, direction=direction)


def components(
    dataset: TrainingDataset,
    features: str | Sequence[Any] | Mapping[str, Sequence[str]] | None,
    layers: Sequence[str] | None,
) -> list[Component]:
    """Return what is left out, one after the other.

    Raises:
        InvalidArgument: Something is no input of the dataset, or nothing would be left out.
    """
    found = [Component(name, features=names) for name, names in _groups(dataset, features).items()]
    found += [Component(f"layer {layer}", layers=(layer,)) for layer in layers or ()]
    for component in found:
        check_features(dataset, component.features)
    if not found:
        raise InvalidArgument(
            f"features={features!r} and layers={layers!r} name nothing to leave out.",
            hint="features='each', 'groups' or lists of names; layers=['dropout']",
        )
    return found


def _groups(dataset: TrainingDataset, features: Any) -> dict[str, tuple[str, ...]]:
    inputs = dataset.roles.inputs
    if features is None:
        return {}
    if features == "each":
        return {name: (name,) for name in inputs}
    if features == "groups":
        return features_by_group(dataset)
    if isinstance(features, str):
        raise InvalidArgument(f"features={features!r} is neither 'each' nor 'groups' nor lists.")
    if isinstance(features, Mapping):
        return {str(name): tuple(names) for name, names in features.items()}
    groups = {}
    for each in features:
        names = (each,) if isinstance(each, str) else tuple(each)
        if " + ".join(names) in groups:
            raise InvalidArgument(f"features={features!r} name {' + '.join(names)!r} twice.")
        groups[" + ".join(names)] = names
    return groups


def features_by_group(dataset: TrainingDataset) -> dict[str, tuple[str, ...]]:
    """Return the inputs of a dataset by the feature group that they come from.

    >>> features_by_group(store.get_training_dataset("late_flights"))
    {'weather': ('temp',), 'planes': ('seats',)}
    """
    inputs = dataset.roles.inputs
    found: dict[str, list[str]] = {}
    plan: Any = dataset.manifest.plan
    while plan is not None:
        for join in [*plan.get("windows", ()), *plan["joins"]]:
            for output in join["outputs"]:
                if output["name"] in inputs:
                    found.setdefault(_group_name(join), []).append(output["name"])
        plan = plan.get("left_plan")
    known = {name for names in found.values() for name in names}
    rest = [name for name in inputs if name not in known]
    if not found:
        raise InvalidArgument(
            f"{dataset.name!r} was not made of feature groups; its inputs are {listing(inputs)}.",
            hint="features='each', or lists of names",
        )
    groups = {name: tuple(names) for name, names in found.items()}
    if rest:
        groups["labels"] = tuple(rest)
    return groups


def _group_name(join: Mapping[str, Any]) -> str:
    return str(join["source"]["featuregroup"])


def table_of(
    session: Session, record: RunRecord, trials: Sequence[RunRecord], *, metric: str, direction: str
) -> Ablation:
    """Return the table of the trials of an ablation."""
    sign = 1.0 if direction == "max" else -1.0
    values: dict[str, dict[int, float]] = {}
    for trial in trials:
        by_seed = values.setdefault(str(trial.settings["component"]), {})
        by_seed[trial.seed] = trial.metrics[metric]
    whole = values.pop("whole")
    rows = []
    for name, by_seed in values.items():
        changes = [sign * (whole[seed] - by_seed[seed]) for seed in sorted(whole)]
        rows.append(worth_of(name, changes))
    rows.sort(key=lambda row: (-row.mean, row.name))
    return Ablation(record.id, metric, tuple(whole[s] for s in sorted(whole)), tuple(rows), session)


def worth_of(name: str, changes: Sequence[float]) -> Worth:
    """Return mean and 95 % interval of changes over repeats.

    >>> worth = worth_of("temp", [0.1, 0.2, 0.3])
    >>> round(worth.mean, 3), round(worth.low, 3), round(worth.high, 3)
    (0.2, -0.048, 0.448)
    """
    mean = statistics.fmean(changes)
    freedom = len(changes) - 1
    if not freedom:
        return Worth(name, mean, None, None, tuple(changes))
    quantile = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    half = quantile * statistics.stdev(changes) / math.sqrt(len(changes))
    return Worth(name, mean, mean - half, mean + half, tuple(changes))
