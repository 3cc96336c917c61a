"""Search spaces: which values a parameter may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.errors import InvalidArgument
from featurestore.experiments.functions import check_params


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high`` inclusive; integers if ``whole``, log-scaled if ``log``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def distribution(self) -> Any:
        """Return the interval as an Optuna distribution."""
        import optuna

        if self.whole:
            return optuna.distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.log)

    def position(self, value: Any) -> float:
        """Return the position of a value between the bounds, from 0 to 1."""
        low, high, scaled = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        return (scaled - low) / (high - low) if high > low else 0.0

    def value_at(self, position: float) -> Any:
        """Return the value at a relative position from 0 to 1."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        value = low + position * (high - low)
        if self.log:
            value = math.exp(value)
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value

    def values(self) -> tuple[Any, ...]:
        """Return all values, for a grid."""
        if not self.whole:
            raise InvalidArgument(
                "A grid needs a finite set of values, and an interval of real numbers has none.",
                hint="list the values: [0.001, 0.01, 0.1]; or sampler='random'",
            )
        return tuple(range(int(self.low), int(self.high) + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the interval as JSON."""
        return {"kind": "interval", **vars(self)}

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else float(value)


@dataclass(frozen=True)
class Choice:
    """A choice among values."""

    options: tuple[Any, ...]

    def distribution(self) -> Any:
        """Return an Optuna distribution over the indexes of the options."""
        import optuna

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

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON."""
        return {"kind": "choice", "options": list(self.options)}


Parameter = Interval | Choice
Space = Mapping[str, Parameter]


def uniform(low: float, high: float) -> Interval:
    """Return the interval from ``low`` to ``high``, sampled uniformly.

    >>> uniform(0.0, 0.5)
    Interval(low=0.0, high=0.5, log=False, whole=False)
    """
    return _interval(low, high, log=False, whole=False)


def loguniform(low: float, high: float) -> Interval:
    """Return the interval from ``low`` to ``high``, sampled log-uniformly.

    >>> loguniform(1e-4, 1e-1).value_at(0.5)
    0.003162...
    """
    return _interval(low, high, log=True, whole=False)


def integers(low: int, high: int, *, log: bool = False) -> Interval:
    """Return the integers from ``low`` to ``high``.

    >>> integers(1, 4).values()
    (1, 2, 3, 4)
    """
    return _interval(low, high, log=log, whole=True)


def choice(options: Sequence[Any]) -> Choice:
    """Return a choice among values; a list in a space has the same meaning.

    >>> choice(["relu", "tanh"]).values()
    ('relu', 'tanh')
    """
    values = tuple(options)
    if not values:
        raise InvalidArgument("A choice needs at least one option.", hint="choice([16, 32])")
    return Choice(values)


def check_space(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return a space with lists as choices.

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
        elif isinstance(values, list | tuple) and values:
            parameters[name] = Choice(tuple(values))
        else:
            raise InvalidArgument(
                f"space[{name!r}]={values!r} is not a set of values.",
                hint="a list, or experiments.uniform, loguniform, integers, choice",
            )
    check_params({name: each.to_json() for name, each in parameters.items()})
    return parameters


def space_from_json(data: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the space of a record."""
    parameters: dict[str, Parameter] = {}
    for name, spec in data.items():
        if spec["kind"] == "choice":
            parameters[name] = Choice(tuple(spec["options"]))
        else:
            parameters[name] = Interval(spec["low"], spec["high"], spec["log"], spec["whole"])
    return parameters


def grid(space: Space) -> list[dict[str, Any]]:
    """Return all combinations of a space, the last parameter changing fastest.

    >>> grid({"lr": Choice((0.1, 0.2)), "units": Choice((8,))})
    [{'lr': 0.1, 'units': 8}, {'lr': 0.2, 'units': 8}]
    """
    values = [parameter.values() for parameter in space.values()]
    return [
        dict(zip(space, combination, strict=True)) for combination in itertools.product(*values)
    ]


def _interval(low: float, high: float, *, log: bool, whole: bool) -> Interval:
    numbers = all(isinstance(each, int | float) for each in (low, high))
    if not numbers or not math.isfinite(low) or not math.isfinite(high) or low > high:
        raise InvalidArgument(f"{low!r} to {high!r} is not an interval.", hint="uniform(0.0, 0.5)")
    if log and low <= 0:
        raise InvalidArgument(f"low={low!r} has no logarithm.", hint="loguniform(1e-4, 1e-1)")
    if whole and not all(isinstance(each, int) for each in (low, high)):
        raise InvalidArgument(f"{low!r} to {high!r} are not integers.", hint="integers(1, 8)")
    return Interval(low, high, log, whole)
