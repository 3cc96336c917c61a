"""What a job runs when the retries of a run are exhausted: a program, or a function of its file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from featurestore.errors import InvalidJob
from featurestore.model import display

# The argument on_failure= of job definitions.
OnFailure = Sequence[str] | Callable[[Any], object] | None
# Characters that only a shell interprets.
_SHELL = re.compile(r"[|&;<>$`*?~()\n]")


@dataclass(frozen=True)
class FailureAction:
    """A program with its arguments, which no shell interprets, or the name of a function.

    The function is a top-level function of the job's module. It is called with the failed run.
    """

    arguments: tuple[str, ...] = ()
    function: str | None = None

    __repr__ = display.record_repr

    def to_json(self) -> list[str] | dict[str, str]:
        """Convert the action to JSON: a list of strings, or an object with the function."""
        if self.function is not None:
            return {"function": self.function}
        return list(self.arguments)

    @classmethod
    def from_json(cls, data: Any) -> FailureAction | None:
        """Parse the output of ``to_json``; raise ValueError if it is invalid."""
        if data is None:
            return None
        if isinstance(data, dict) and set(data) == {"function"}:
            name = data["function"]
            if isinstance(name, str) and name.isidentifier():
                return cls(function=name)
        elif isinstance(data, list) and _is_command(data):
            return cls(tuple(data))
        raise ValueError("on_failure is neither a list of strings nor a function")


def parse_on_failure(value: object, *, job: str) -> FailureAction | None:
    """Return the action of an argument ``on_failure=``.

    >>> parse_on_failure(["notify", "--team", "rides"], job="traffic").arguments
    ('notify', '--team', 'rides')

    Raises:
        InvalidJob: The value is a string, which would need a shell, or not a top-level function.
    """
    if value is None or isinstance(value, FailureAction):
        return value
    if isinstance(value, str):
        raise InvalidJob(
            f"Job {job!r}: on_failure={value!r} is a string, but no shell runs it.",
            hint=f"on_failure={_to_arguments(value)!r}",
        )
    if callable(value):
        name = getattr(value, "__qualname__", "")
        # A later process cannot import local functions, and those of other modules, by their names.
        if not name.isidentifier():
            raise InvalidJob(
                f"Job {job!r}: on_failure={value!r} is not a function at the top level of a file.",
                hint="def notify(run): ... in the file of the job, then on_failure=notify",
            )
        return FailureAction(function=name)
    if isinstance(value, Sequence) and _is_command(value):
        return FailureAction(tuple(value))
    raise InvalidJob(
        f"Job {job!r}: on_failure={value!r} is neither a list of strings nor a function.",
        hint="on_failure=['/usr/local/bin/notify', '--team', 'rides']",
    )


def _is_command(value: Sequence[Any]) -> bool:
    """Return whether a sequence is a program with arguments, as an operating system accepts it."""
    return bool(value and value[0]) and all(
        isinstance(argument, str) and "\0" not in argument for argument in value
    )


def _to_arguments(text: str) -> list[str]:
    """Return the argument list of a command line; a line with shell syntax names its shell."""
    try:
        arguments = shlex.split(text)
    except ValueError:  # an open quotation
        arguments = []
    if not arguments or _SHELL.search(text):
        return ["sh", "-c", text]
    return arguments
