"""Search spaces, and parameter sampling with Optuna's ask-and-tell interface.

Trials are stored as runs, and the in-memory Optuna study is rebuilt from them, so that a search
can continue after a crash. A sampler selected by name is seeded with the trial number, so that an
interruption does not change its proposals.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from featurestore.arrow.lists import as_list
from featurestore.errors import InvalidArgument, RunDamaged, did_you_mean, missing_extra
from featurestore.experiments.functions import check_params
from featurestore.model import display
from featurestore.model.json_object import JsonDict, JsonMapping, JsonObject, MalformedJson
from featurestore.model.records import Record

# Differential evolution, which Optuna does not have: population, differential weight, crossover
# rate.
POPULATION = 8
_WEIGHT = 0.6
_CROSSOVER = 0.8
SAMPLERS = ("tpe", "random", "grid", "evolution")
STOPS = ("asha", "median")
DIRECTIONS = {"max": "maximize", "min": "minimize"}


def uniform(low: float, high: float) -> Interval:
    """Create an interval that is sampled uniformly from ``low`` to ``high``.

    >>> uniform(0.0, 0.5)
    Interval(low=0.0, high=0.5, log=False, whole=False)
    """
    return _interval(low, high, log=False, whole=False)


def loguniform(low: float, high: float) -> Interval:
    """Create an interval that is sampled log-uniformly from ``low`` to ``high``.

    >>> loguniform(1e-4, 1e-1).value_at(0.5)
    0.003162...
    """
    return _interval(low, high, log=True, whole=False)


def integers(low: int, high: int, *, log: bool = False) -> Interval:
    """Create an interval of the integers from ``low`` to ``high``.

    >>> integers(1, 4).values()
    (1, 2, 3, 4)
    """
    return _interval(low, high, log=log, whole=True)


def choice(options: Sequence[Any]) -> Choice:
    """Create a choice among values; a list in a search space has the same meaning.

    >>> choice(["relu", "tanh"]).values()
    ('relu', 'tanh')
    """
    values = as_list(options)
    if not values:
        raise InvalidArgument("A choice needs at least one option.", hint="choice([16, 32])")
    return Choice(tuple(values))


def _interval(low: float, high: float, *, log: bool, whole: bool) -> Interval:
    """Create an interval after checking its bounds."""
    numbers = all(isinstance(bound, int | float) for bound in (low, high))
    if not numbers or not math.isfinite(low) or not math.isfinite(high) or low > high:
        raise InvalidArgument(
            f"{low!r} to {high!r} is not a valid interval.", hint="uniform(0.0, 0.5)"
        )
    if log and low <= 0:
        raise InvalidArgument(
            f"low={low!r} must be positive on a logarithmic scale.", hint="loguniform(1e-4, 1e-1)"
        )
    if whole and not all(isinstance(bound, int) for bound in (low, high)):
        raise InvalidArgument(f"{low!r} to {high!r} are not integers.", hint="integers(1, 8)")
    return Interval(low, high, log, whole)


@dataclass(frozen=True)
class Interval(Record):
    """Numbers from ``low`` to ``high`` inclusive; integers if ``whole``, log-scaled if ``log``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    __repr__ = display.record_repr

    def distribution(self) -> Any:
        """Convert the interval to an Optuna distribution."""
        import optuna

        if self.whole:
            return optuna.distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.log)

    def position(self, value: Any) -> float:
        """Return the relative position of a value between the bounds, from 0 to 1."""
        low, high, scaled = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        return (scaled - low) / (high - low) if high > low else 0.0

    def value_at(self, position: float) -> Any:
        """Return the value at a relative position from 0 to 1."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        value = low + position * (high - low)
        if self.log:
            value = math.exp(value)
        # ``exp`` and ``log`` round, so the value may be slightly outside the interval.
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    def values(self) -> tuple[Any, ...]:
        """Return all values, for grid search."""
        if not self.whole:
            raise InvalidArgument(
                "A grid needs a finite set of values, and an interval of real numbers has none.",
                hint="list the values: [0.001, 0.01, 0.1]; or sampler='random'",
            )
        return tuple(range(int(self.low), int(self.high) + 1))

    def to_json(self) -> JsonDict:
        """Return the interval as a JSON object."""
        return {"kind": "interval", **super().to_json()}

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else float(value)


@dataclass(frozen=True)
class Choice(Record):
    """A choice among values."""

    options: tuple[Any, ...]

    __repr__ = display.record_repr

    def distribution(self) -> Any:
        """Return an Optuna distribution over the option indexes."""
        import optuna

        # Optuna warns about categories other than None, booleans, numbers and strings; options may
        # be lists.
        return optuna.distributions.CategoricalDistribution(tuple(range(len(self.options))))

    def position(self, value: Any) -> float:
        """Return the relative position of a value among the options, from 0 to 1."""
        return (self.options.index(value) + 0.5) / len(self.options)

    def value_at(self, position: float) -> Any:
        """Return the option at a relative position from 0 to 1."""
        return self.options[min(int(position * len(self.options)), len(self.options) - 1)]

    def values(self) -> tuple[Any, ...]:
        """Return all values."""
        return self.options

    def to_json(self) -> JsonDict:
        """Return the choice as a JSON object."""
        return {"kind": "choice", **super().to_json()}


Parameter = Interval | Choice
_PARAMETER_TYPES: Mapping[str, type[Interval] | type[Choice]] = {
    "interval": Interval,
    "choice": Choice,
}
Space = Mapping[str, Parameter]
Params = JsonMapping


def check_space(space: JsonMapping) -> dict[str, Parameter]:
    """Validate a search space and convert its lists to choices.

    Raises:
        InvalidArgument: The space is empty, or a parameter is neither a list nor an interval.
    """
    if not isinstance(space, Mapping) or not space:
        raise InvalidArgument(
            f"space={space!r} has no parameters.",
            hint='space={"lr": experiments.loguniform(1e-4, 1e-1), "units": [16, 32]}',
        )
    parameters: dict[str, Parameter] = {}
    for name, values in space.items():
        if isinstance(values, Interval | Choice):
            parameters[name] = values
        elif options := as_list(values):
            parameters[name] = Choice(tuple(options))
        else:
            raise InvalidArgument(
                f"space[{name!r}]={values!r} is not a set of values.",
                hint="a list, or experiments.uniform, loguniform, integers, choice",
            )
    check_params({name: parameter.to_json() for name, parameter in parameters.items()})
    return parameters


def space_from_json(data: JsonMapping) -> dict[str, Parameter]:
    """Parse the search space of a run record.

    Raises:
        RunDamaged: A parameter is neither a choice nor an interval.
    """
    parameters: dict[str, Parameter] = {}
    try:
        document = JsonObject.from_value(data, "space")
        for name in document.data:
            spec = document.object(name)
            parameter_type = _PARAMETER_TYPES.get(spec.text("kind"))
            if parameter_type is None:
                raise spec.wrong_type_error("kind", "interval or choice")
            parameters[name] = parameter_type.from_json(spec)
    except MalformedJson as error:
        raise RunDamaged(f"The search space of the study is damaged: {error}.") from error
    return parameters


def grid(space: Space) -> list[JsonDict]:
    """Return all combinations of a space, the last parameter changing fastest.

    >>> grid({"lr": Choice((0.1, 0.2)), "units": Choice((8,))})
    [{'lr': 0.1, 'units': 8}, {'lr': 0.2, 'units': 8}]
    """
    values = [parameter.values() for parameter in space.values()]
    return [
        dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)
    ]


class Sampling:
    """Proposes the parameters of a search and prunes its trials.

    Args:
        space: The search space.
        sampler: A name from ``SAMPLERS``, or an Optuna sampler.
        stop: A name from ``STOPS``, an Optuna pruner, or None.
        direction: "max" or "min".
        seed: The seed of samplers selected by name.
    """

    def __init__(self, space: Space, *, sampler: Any, stop: Any, direction: str, seed: int) -> None:
        self._optuna = import_optuna()
        check_strategies(sampler, stop, direction)
        self._space, self._sampler, self._stop, self._seed = space, sampler, stop, seed
        self._sign = 1.0 if direction == "min" else -1.0
        self._first_step: int | None = None
        self._finished: list[tuple[JsonMapping, float]] = []
        self._trials: dict[int, Any] = {}
        self._grid = grid(space) if sampler == "grid" else []
        self._distributions = {name: parameter.distribution() for name, parameter in space.items()}
        logging = self._optuna.logging
        # The verbosity applies to the process, so it is restored for other studies of the user.
        previous_verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)  # the in-memory study is an implementation detail
        try:
            self._study = self._optuna.create_study(direction=DIRECTIONS[direction])
        finally:
            logging.set_verbosity(previous_verbosity)
        # Samplers selected by name are set before each trial.
        if not isinstance(sampler, str):
            self._study.sampler = sampler
        self._set_pruner()

    @property
    def size(self) -> int | None:
        """The maximum number of trials, None for no limit."""
        return len(self._grid) or None

    def restore(self, past_trials: Iterable[PastTrial]) -> None:
        """Add earlier trials and their reports to the study, ordered by number."""
        # Optuna numbers trials by their position in the study.
        for past_trial in sorted(past_trials, key=lambda trial: trial.number):
            optuna_trial = self._optuna.trial.create_trial(
                # Add trials as running and repeat their reports and ends, so that samplers and
                # pruners get the state that they had before the interruption.
                state=self._optuna.trial.TrialState.RUNNING,
                params={
                    name: self._to_optuna_value(name, past_trial.params[name])
                    for name in self._space
                },
                distributions=self._distributions,
            )
            optuna_trial.datetime_start = dt.datetime.now()
            self._study.add_trial(optuna_trial)
            # Optuna has no public way to continue a trial that was added to a study.
            trial_id = self._study.trials[past_trial.number]._trial_id
            self._trials[past_trial.number] = self._optuna.trial.Trial(self._study, trial_id)
            for step, value in past_trial.history.items():
                self.report(past_trial.number, step, value)
            if past_trial.state in ("finished", "stopped", "failed"):
                self.tell(past_trial.number, past_trial.state, past_trial.value)

    def ask(self) -> tuple[int, JsonDict]:
        """Return the number and parameters of the next trial."""
        number = len(self._study.trials)
        fixed = self._propose_without_optuna(number)
        if fixed is not None:
            internal = {name: self._to_optuna_value(name, value) for name, value in fixed.items()}
            # Optuna's own GridSampler raises an error at its last trial unless Optuna runs the
            # trials.
            self._study.enqueue_trial(internal)
        elif isinstance(self._sampler, str):
            # A new sampler per trial depends only on the seed and on earlier trials, also after a
            # restart.
            self._study.sampler = self._seeded_sampler(number)
        trial = self._study.ask(self._distributions)
        self._trials[trial.number] = trial
        return trial.number, self._to_parameters(trial.params)

    def report(self, number: int, step: int, value: float) -> bool:
        """Record an intermediate value of a trial and return True to prune the trial."""
        trial = self._trials[number]
        self._set_resource_unit({step: value})
        # A resumed trial repeats the steps after its checkpoint, and Optuna warns about repeated
        # steps.
        if step not in self._study.trials[number].intermediate_values:
            trial.report(value, step)
        # The result may be a ``numpy.bool_``, which JSON replies cannot contain.
        return bool(trial.should_prune())

    def tell(self, number: int, state: str, value: float | None) -> None:
        """Record the end of a trial."""
        states = self._optuna.trial.TrialState
        params = self._study.trials[number].params
        if state == "finished" and value is not None:
            self._study.tell(number, value)
            self._finished.append((self._to_parameters(params), self._sign * value))
        else:
            is_stopped = state == "stopped"
            self._study.tell(number, state=states.PRUNED if is_stopped else states.FAIL)
        self._trials.pop(number, None)

    def _propose_without_optuna(self, number: int) -> JsonDict | None:
        """Return the proposal of a sampler that Optuna does not provide, otherwise None."""
        if self._sampler == "grid":
            return self._grid[number]
        if self._sampler == "evolution":
            return evolve(self._space, self._finished, seed=f"{self._seed}/{number}")
        return None

    def _seeded_sampler(self, number: int) -> Any:
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        if self._sampler == "random":
            return self._optuna.samplers.RandomSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed)

    def _set_resource_unit(self, history: Mapping[int, float]) -> None:
        """Use the first reported step as the unit of successive halving."""
        if history and self._first_step is None:
            # Optuna requires a minimum resource of at least 1.
            self._first_step = max(1, min(history))
            self._set_pruner()

    def _set_pruner(self) -> None:
        """Set the pruner that ``stop`` selects."""
        pruners = self._optuna.pruners
        if self._stop is None:
            self._study.pruner = pruners.NopPruner()
        elif self._stop == "asha":
            min_resource = self._first_step or 1
            self._study.pruner = pruners.SuccessiveHalvingPruner(
                min_resource=min_resource, reduction_factor=3
            )
        elif self._stop == "median":
            self._study.pruner = pruners.MedianPruner(n_startup_trials=4)
        else:
            self._study.pruner = self._stop

    def _to_parameters(self, params: JsonMapping) -> JsonDict:
        """Convert Optuna parameters to the parameters of the training function."""
        values = dict(params)
        for name, parameter in self._space.items():
            if isinstance(parameter, Choice):
                values[name] = parameter.options[params[name]]
        return values

    def _to_optuna_value(self, name: str, value: Any) -> Any:
        """Convert a value to its Optuna representation; choices are represented by their index."""
        parameter = self._space[name]
        if isinstance(parameter, Choice):
            return parameter.options.index(value)
        return value


@dataclass(frozen=True)
class PastTrial:
    """A trial restored from its run; ``value`` is None until the trial has one."""

    number: int
    params: JsonMapping
    state: str
    value: float | None = None
    history: Mapping[int, float] = field(default_factory=dict)


def evolve(space: Space, finished: Sequence[tuple[Params, float]], *, seed: str) -> JsonDict:
    """Propose the parameters of the next trial with an evolutionary strategy.

    Args:
        space: The search space.
        finished: Parameters and values of finished trials; lower is better.
        seed: Seed of the random numbers.

    >>> from featurestore.experiments.spaces import uniform
    >>> finished = [({"x": x / 10}, (x / 10 - 0.3) ** 2) for x in range(10)]
    >>> 0 <= evolve({"x": uniform(0, 1)}, finished, seed="7")["x"] <= 1
    True
    """
    generator = random.Random(seed)
    best = sorted(finished, key=lambda trial: trial[1])[:POPULATION]
    # Mutation needs differences between earlier trials, so the first ones are random.
    if len(best) < min(4, POPULATION):
        return {name: parameter.value_at(generator.random()) for name, parameter in space.items()}
    parent = generator.choice(best)[0]
    first, second = generator.sample(best, 2)
    mutated_name = generator.choice(list(space))
    params = {}
    for name, parameter in space.items():
        if name != mutated_name and generator.random() > _CROSSOVER:
            params[name] = parent[name]
            continue
        base = parameter.position(best[0][0][name])
        step = parameter.position(first[0][name]) - parameter.position(second[0][name])
        # The noise keeps proposals distinct when the population has converged and all differences
        # are 0.
        position = base + _WEIGHT * step + generator.gauss(0, 0.02)
        params[name] = parameter.value_at(min(max(position, 0.0), 1.0))
    return params


def check_strategies(sampler: Any, stop: Any, direction: str) -> None:
    """Raise InvalidArgument for unknown names and for objects that Optuna does not provide."""
    optuna = import_optuna()
    if direction not in DIRECTIONS:
        raise InvalidArgument(f"direction={direction!r} is neither 'max' nor 'min'.")
    arguments: tuple[tuple[str, Any, tuple[str, ...], type], ...] = (
        ("sampler", sampler, SAMPLERS, optuna.samplers.BaseSampler),
        ("stop", stop, STOPS, optuna.pruners.BasePruner),
    )
    for argument, value, names, base_class in arguments:
        if (
            value in names
            or isinstance(value, base_class)
            or (argument == "stop" and value is None)
        ):
            continue
        raise InvalidArgument(
            f"Unknown {argument} {value!r}. Available: {', '.join(map(repr, names))}, or an Optuna "
            f"{base_class.__name__.removeprefix('Base').lower()}.",
            hint=did_you_mean(value, names, write=f"{argument}={{!r}}"),
        )


def strategy_name(sampler: Any) -> str | None:
    """Return the name of a sampler or pruner for the record."""
    if sampler is None or isinstance(sampler, str):
        return sampler
    return type(sampler).__qualname__


def import_optuna() -> Any:
    """Import ``optuna``, or raise MissingExtra."""
    try:
        with warnings.catch_warnings():
            # Raised in a notebook without widgets; Optuna's progress bar is never shown.
            warnings.filterwarnings("ignore", message="IProgress not found")
            import optuna
    except ImportError as error:
        raise missing_extra("optuna", "experiments") from error
    return optuna
