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
    """Numbers from ``low`` to ``high``, both included; ``whole`` ones, or spread by their size."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def distribution(self) -> Any:
        """Return the same as an Optuna distribution."""
        import optuna

        if self.whole:
            return optuna.distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return optuna.distributions.FloatDistribution(self.low, self.high, log=self.log)

    def position(self, value: Any) -> float:
        """Return where a value lies between the bounds: 0 to 1."""
        low, high, at = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        return (at - low) / (high - low) if high > low else 0.0

    def at(self, position: float) -> Any:
        """Return the value at a position."""
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
                "A grid needs values that can be counted, and a space has numbers of an interval.",
                hint="name them: [0.001, 0.01, 0.1]; or sampler='random'",
            )
        return tuple(range(int(self.low), int(self.high) + 1))

    def to_json(self) -> dict[str, Any]:
        """Return the interval as JSON."""
        return {"kind": "interval", **vars(self)}

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else float(value)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    options: tuple[Any, ...]

    def distribution(self) -> Any:
        """Return the same as an Optuna distribution, over the positions of the values."""
        import optuna

        return optuna.distributions.CategoricalDistribution(tuple(range(len(self.options))))

    def position(self, value: Any) -> float:
        """Return where a value stands among the options: 0 to 1."""
        return (self.options.index(value) + 0.5) / len(self.options)

    def at(self, position: float) -> Any:
        """Return the option at a position."""
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
    """Return the numbers from ``low`` to ``high``, all alike.

    >>> uniform(0.0, 0.5)
    Interval(low=0.0, high=0.5, log=False, whole=False)
    """
    return _interval(low, high, log=False, whole=False)


def loguniform(low: float, high: float) -> Interval:
    """Return the numbers from ``low`` to ``high``, each order of magnitude alike.

    >>> loguniform(1e-4, 1e-1).at(0.5)
    0.003162...
    """
    return _interval(low, high, log=True, whole=False)


def integers(low: int, high: int, *, log: bool = False) -> Interval:
    """Return the whole numbers from ``low`` to ``high``.

    >>> integers(1, 4).values()
    (1, 2, 3, 4)
    """
    return _interval(low, high, log=log, whole=True)


def choice(options: Sequence[Any]) -> Choice:
    """Return one of some values; a list in a space means the same.

    >>> choice(["relu", "tanh"]).values()
    ('relu', 'tanh')
    """
    found = tuple(options)
    if not found:
        raise InvalidArgument("A choice of nothing.", hint="choice([16, 32])")
    return Choice(found)


def check_space(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return a space with lists as choices.

    Raises:
        InvalidArgument: It is empty, or a parameter is neither a list nor an interval.
    """
    if not isinstance(space, Mapping) or not space:
        raise InvalidArgument(
            f"space={space!r} says no parameter.",
            hint='space={"lr": experiments.loguniform(1e-4, 1e-1), "units": [16, 32]}',
        )
    found: dict[str, Parameter] = {}
    for name, given in space.items():
        if isinstance(given, Interval | Choice):
            found[name] = given
        elif isinstance(given, list | tuple) and given:
            found[name] = Choice(tuple(given))
        else:
            raise InvalidArgument(
                f"space[{name!r}]={given!r} is no set of values.",
                hint="a list, or experiments.uniform, loguniform, integers, choice",
            )
    check_params({name: _told(each) for name, each in found.items()})
    return found


def space_from_json(data: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the space that a record tells of."""
    found: dict[str, Parameter] = {}
    for name, told in data.items():
        if told["kind"] == "choice":
            found[name] = Choice(tuple(told["options"]))
        else:
            found[name] = Interval(told["low"], told["high"], told["log"], told["whole"])
    return found


def grid(space: Space) -> list[dict[str, Any]]:
    """Return all combinations of a space, the last parameter changing fastest.

    >>> grid({"lr": Choice((0.1, 0.2)), "units": Choice((8,))})
    [{'lr': 0.1, 'units': 8}, {'lr': 0.2, 'units': 8}]
    """
    values = [parameter.values() for parameter in space.values()]
    return [dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*values)]


def _interval(low: float, high: float, *, log: bool, whole: bool) -> Interval:
    numbers = all(isinstance(each, int | float) for each in (low, high))
    if not numbers or not math.isfinite(low) or not math.isfinite(high) or low > high:
        raise InvalidArgument(f"{low!r} to {high!r} is no interval.", hint="uniform(0.0, 0.5)")
    if log and low <= 0:
        raise InvalidArgument(f"low={low!r} has no logarithm.", hint="loguniform(1e-4, 1e-1)")
    if whole and not all(isinstance(each, int) for each in (low, high)):
        raise InvalidArgument(f"{low!r} to {high!r} are not whole.", hint="integers(1, 8)")
    return Interval(low, high, log, whole)


def _told(parameter: Parameter) -> Any:
    return parameter.to_json()
