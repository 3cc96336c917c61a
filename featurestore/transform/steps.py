"""Chains of steps, composed by ``|``.

A step is data: the name of its rule, the rule's options and, after fitting, the fitted values. The
rules implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import InvalidArgument


@dataclass(frozen=True)
class Step:
    """One rule with its options and fitted values.

    ``function`` and ``fit`` are the Python functions of the rule "function"; files have only the
    hash of their source.
    """

    rule: str
    options: Mapping[str, Any] = field(default_factory=dict)
    fitted: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    fit: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the step as a JSON object."""
        data: dict[str, Any] = {"rule": self.rule, "options": dict(self.options)}
        if self.fitted is not None:
            data["fitted"] = dict(self.fitted)
        return data

    def __str__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items() if value is not None]
        return f"{self.rule}({', '.join(options)})"


@dataclass(frozen=True)
class Chain:
    """The steps of one column, in order.

    >>> from featurestore import transform as t
    >>> t.log1p() | t.standardize()
    log1p() | standardize()
    """

    steps: tuple[Step, ...]

    def __or__(self, other: Chain) -> Chain:
        if not isinstance(other, Chain):
            raise InvalidArgument(
                f"{other!r} is not a transformation.", hint="t.log1p() | t.standardize()"
            )
        return Chain((*self.steps, *other.steps))

    def __repr__(self) -> str:
        return " | ".join(map(str, self.steps))


def single_step(rule: str, **options: Any) -> Chain:
    """Return the chain of a single step."""
    return Chain((Step(rule, options),))
