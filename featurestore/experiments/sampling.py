"""Optuna by ask and tell: the parameters of the next trial, and which trials to give up.

Trials are kept as runs; a study of Optuna in memory is made anew from them, so that a search goes
on after a crash. A sampler that is named is seeded for each trial by its number, which makes what
it proposes the same whether the search was interrupted or not.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import InvalidArgument, did_you_mean, missing_extra
from featurestore.experiments import evolution, spaces
from featurestore.experiments.spaces import Choice, Space

SAMPLERS = ("tpe", "random", "grid", "evolution")
STOPS = ("asha", "median")
DIRECTIONS = {"max": "maximize", "min": "minimize"}


@dataclass(frozen=True)
class PastTrial:
    """A trial as its run tells of it; ``value`` is None while it has none."""

    number: int
    params: Mapping[str, Any]
    state: str
    value: float | None = None
    history: Mapping[int, float] = field(default_factory=dict)


class Sampling:
    """Proposes parameters and judges reports of one search.

    Args:
        space: What parameters may be.
        sampler: A name of ``SAMPLERS``, or a sampler of Optuna.
        stop: A name of ``STOPS``, a pruner of Optuna, or None.
        direction: "max" or "min".
        seed: Of samplers that are named.
    """

    def __init__(self, space: Space, *, sampler: Any, stop: Any, direction: str, seed: int) -> None:
        self._optuna = import_optuna()
        check_names(sampler, stop, direction)
        self._space, self._sampler, self._stop, self._seed = space, sampler, stop, seed
        self._sign = 1.0 if direction == "min" else -1.0
        self._first_step: int | None = None
        self._finished: list[tuple[Mapping[str, Any], float]] = []
        self._trials: dict[int, Any] = {}
        self._grid = spaces.grid(space) if sampler == "grid" else []
        self._distributions = {name: each.distribution() for name, each in space.items()}
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)  # a study in memory is no news
        try:
            self._study = self._optuna.create_study(direction=DIRECTIONS[direction])
        finally:
            logging.set_verbosity(before)
        if not isinstance(sampler, str):
            self._study.sampler = sampler
        self._set_pruner()

    @property
    def size(self) -> int | None:
        """How many trials there can be; None: as many as are wanted."""
        return len(self._grid) or None

    def restore(self, past: Iterable[PastTrial]) -> None:
        """Take up trials of earlier: what they reported is reported again, in their order."""
        for each in sorted(past, key=lambda trial: trial.number):
            made = self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.RUNNING,
                params={name: self._internal(name, each.params[name]) for name in self._space},
                distributions=self._distributions,
            )
            made.datetime_start = dt.datetime.now()
            self._study.add_trial(made)
            trial_id = self._study.trials[each.number]._trial_id
            self._trials[each.number] = self._optuna.trial.Trial(self._study, trial_id)
            for step, value in each.history.items():
                self.report(each.number, step, value)
            if each.state in ("finished", "stopped", "failed"):
                self.tell(each.number, each.state, each.value)

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Return number and parameters of the next trial."""
        number = len(self._study.trials)
        fixed = self._fixed(number)
        if fixed is not None:
            internal = {name: self._internal(name, value) for name, value in fixed.items()}
            self._study.enqueue_trial(internal)
        elif isinstance(self._sampler, str):
            self._study.sampler = self._named(number)
        trial = self._study.ask(self._distributions)
        self._trials[trial.number] = trial
        return trial.number, self._outer(trial.params)

    def report(self, number: int, step: int, value: float) -> bool:
        """Keep a value of a running trial, and tell whether to give it up."""
        trial = self._trials[number]
        self._note_step({step: value})
        if step not in self._study.trials[number].intermediate_values:
            trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, number: int, state: str, value: float | None) -> None:
        """Say how a trial ended."""
        states = self._optuna.trial.TrialState
        params = self._study.trials[number].params
        if state == "finished" and value is not None:
            self._study.tell(number, value)
            self._finished.append((self._outer(params), self._sign * value))
        else:
            given_up = state == "stopped"
            self._study.tell(number, state=states.PRUNED if given_up else states.FAIL)
        self._trials.pop(number, None)

    def _fixed(self, number: int) -> dict[str, Any] | None:
        """Return parameters that no sampler of Optuna proposes."""
        if self._sampler == "grid":
            return self._grid[number]
        if self._sampler == "evolution":
            return evolution.evolve(self._space, self._finished, seed=f"{self._seed}/{number}")
        return None

    def _named(self, number: int) -> Any:
        digest = hashlib.sha256(f"{self._seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        if self._sampler == "random":
            return self._optuna.samplers.RandomSampler(seed=seed)
        return self._optuna.samplers.TPESampler(seed=seed)

    def _note_step(self, history: Mapping[int, float]) -> None:
        """Let the first step that is ever reported be the unit in which trials are halved."""
        if history and self._first_step is None:
            self._first_step = max(1, min(history))
            self._set_pruner()

    def _set_pruner(self) -> None:
        pruners = self._optuna.pruners
        if self._stop is None:
            self._study.pruner = pruners.NopPruner()
        elif self._stop == "asha":
            least = self._first_step or 1
            self._study.pruner = pruners.SuccessiveHalvingPruner(
                min_resource=least, reduction_factor=3
            )
        elif self._stop == "median":
            self._study.pruner = pruners.MedianPruner(n_startup_trials=4)
        else:
            self._study.pruner = self._stop

    def _outer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters as the function gets them."""
        found = dict(params)
        for name, parameter in self._space.items():
            if isinstance(parameter, Choice):
                found[name] = parameter.options[params[name]]
        return found

    def _internal(self, name: str, value: Any) -> Any:
        """Return a value as Optuna knows it: of a choice its position."""
        parameter = self._space[name]
        if isinstance(parameter, Choice):
            return parameter.options.index(value)
        return value


def check_names(sampler: Any, stop: Any, direction: str) -> None:
    """Refuse names that mean nothing, and objects that are not Optuna's."""
    optuna = import_optuna()
    if direction not in DIRECTIONS:
        raise InvalidArgument(f"direction={direction!r} is neither 'max' nor 'min'.")
    known: tuple[tuple[str, Any, tuple[str, ...], type], ...] = (
        ("sampler", sampler, SAMPLERS, optuna.samplers.BaseSampler),
        ("stop", stop, STOPS, optuna.pruners.BasePruner),
    )
    for argument, given, names, kind in known:
        if given in names or isinstance(given, kind) or (argument == "stop" and given is None):
            continue
        raise InvalidArgument(
            f"{argument}={given!r} is none of {', '.join(map(repr, names))}, nor an Optuna "
            f"{kind.__name__.removeprefix('Base').lower()}.",
            hint=did_you_mean(given, names, write=f"{argument}={{!r}}"),
        )


def name_of(given: Any) -> str | None:
    """Return what a sampler or pruner is called in a record."""
    if given is None or isinstance(given, str):
        return given
    return type(given).__qualname__


def import_optuna() -> Any:
    """Return the module ``optuna``, or raise MissingExtra."""
    try:
        with warnings.catch_warnings():
            # Of a notebook without widgets; no bar of Optuna is ever shown.
            warnings.filterwarnings("ignore", message="IProgress not found")
            import optuna
    except ImportError as error:
        raise missing_extra("optuna", "experiments") from error
    return optuna
