"""What is asked of a column: steps, put one behind the other by ``|``.

A step says its rule and the rule's options. Once fitted it also holds what was found in the rows of
the split that it was fitted on. Steps are data: what they do is in the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from featurestore.errors import InvalidArgument


@dataclass(frozen=True)
class Step:
    """One rule with its options, and with what was fitted.

    ``function`` and ``fit`` are the Python functions of a step of the rule "function"; files hold
    the hash of their source alone.
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
        said = []
        for name, value in self.options.items():
            if value is not None:
                said.append(f"{name}={value!r}")
        return f"{self.rule}({', '.join(said)})"


@dataclass(frozen=True)
class Chain:
    """Steps of one column, the first one first.

    >>> from featurestore import transform as t
    >>> t.log1p() | t.standardize()
    log1p() | standardize()
    """

    steps: tuple[Step, ...]

    def __or__(self, other: Chain) -> Chain:
        if not isinstance(other, Chain):
            raise InvalidArgument(
                f"{other!r} is no transformation.", hint="t.log1p() | t.standardize()"
            )
        return Chain((*self.steps, *other.steps))

    def __repr__(self) -> str:
        return " | ".join(map(str, self.steps))


def one(rule: str, **options: Any) -> Chain:
    """Return the chain of a single step."""
    return Chain((Step(rule, options),))
