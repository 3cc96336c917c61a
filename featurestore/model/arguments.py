"""Arguments of public calls: suggestions for unknown arguments, count checks, and caller positions.

Counts are versions, limits, offsets and row numbers.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any, TypeVar

from featurestore.arrow.column_names import is_utf8_string
from featurestore.arrow.lists import as_list
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    OutOfRange,
)
from featurestore.model.suggestions import (
    DICT_EXAMPLES,
    EQUAL_VALUES,
    argument_error,
    short_repr,
    translate,
)

_INTERNAL_PREFIXES = ("featurestore.", "featurestore_connectors.", "functools", "contextlib")

# The maximum integer of SQLite, PostgreSQL, Delta and Arrow.
MAX_INT64 = 2**63 - 1
# The directory of a version has at most nine digits (``paths.parse_version_directory``).
MAX_VERSION = 10**9 - 1

# Count arguments of public calls, with the widest allowed range. A call may narrow the range.
COUNTS: Mapping[str, tuple[int, int]] = {
    "version": (1, MAX_VERSION),
    "limit": (0, MAX_INT64),
    "offset": (0, MAX_INT64),
    "n": (0, MAX_INT64),
}

# Types of lists, also by their aliases.
_LISTS = frozenset({"Sequence", "Columns", "Windows", "JoinKey"})
# Types of dicts.
_DICTS = ("Mapping[", "dict[")

# Examples of arguments whose items are not columns.
_LIST_EXAMPLES = {
    "alert": "['ops']",
    "features": "['weather.temp']",
    "functions": "['sum', 'mean']",
    "metric": "['auc']",
    "null_values": "['NA']",
    "over": "['1d', '7d']",
    "windows": "['purchases.amount|sum|7d']",
}

_PATH_EXAMPLES = {
    "folder": ".",
    "location": "my-store",
    "manifest": "target/manifest.json",
    "module_or_path": "jobs.py",
}

# Positions of warnings that are issued once.
_warned_positions: set[tuple[type[Warning], str, int]] = set()

# Parameters with rows, which may be many.
_ROWS = ("df", "entities", "entity", "labels", "rows", "subject")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Argument:
    """A parameter of a public call, and the checks of its values.

    ``position`` is None for a keyword. ``types`` are the alternatives of the annotation, as text and
    without None; ``type_names`` are the names of all types in it, also within others.
    """

    name: str
    position: int | None
    types: tuple[str, ...]
    type_names: frozenset[str]
    allows_none: bool

    @classmethod
    def of(cls, parameter: inspect.Parameter, position: int) -> Argument:
        """Return the argument of a parameter."""
        is_positional = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        types: tuple[str, ...] = ()
        type_names = frozenset[str]()
        if isinstance(parameter.annotation, str):
            types, type_names = _parse_annotation(parameter.annotation)
        return cls(
            parameter.name,
            position if is_positional else None,
            tuple(dtype for dtype in types if dtype != "None"),
            type_names,
            "None" in types or parameter.default is None,
        )

    @property
    def is_list(self) -> bool:
        """Whether the values are lists of names or values."""
        return self.name == "expectations" or not _LISTS.isdisjoint(self.type_names)

    @property
    def is_path(self) -> bool:
        """Whether the values are paths."""
        return "PathLike" in self.type_names

    def conversions(self) -> Iterator[Callable[[object], object]]:
        """Yield the checks and conversions of a value, in order.

        Counts and paths are checked, collections become lists, and words of other libraries are
        translated.
        """
        # Rows have their own errors, with the column; paths may contain any bytes.
        if "str" in self.type_names and self.name not in _ROWS and not self.is_path:
            yield functools.partial(check_encodable, self.name)
        # ``before=`` is a version in some calls and a table in others.
        if self.name in COUNTS and "int" in self.type_names:
            yield self._check_count
        if self.is_list:
            yield self._parse_list
        if self.is_path:
            yield self._check_path
        if self.name in EQUAL_VALUES:
            yield functools.partial(translate, self.name)

    def describe_mismatch(self, value: object) -> tuple[str, str] | None:
        """Return the type and an example if the value is not the string or dict that it must be."""
        if len(self.types) != 1 or (value is None and self.allows_none):
            return None
        if self.types == ("str",) and not isinstance(value, str):
            return "a string", "'...'"
        if self.types[0].startswith(_DICTS) and not isinstance(value, Mapping):
            return "a dict", DICT_EXAMPLES.get(self.name, "{}")
        return None

    def _check_count(self, value: object) -> object:
        check_counts({self.name: value})
        return value

    def _parse_list(self, value: object) -> object:
        """Return a value as a list, and a value of another type of the parameter unchanged.

        Raises:
            InvalidArgument: The value has no type of the parameter.
        """
        if value is None and self.allows_none:
            return value
        is_names = set(self.types) - {"str"} in ({"Sequence[str]"}, {"Columns"})
        if isinstance(value, str):
            if not is_names or "str" in self.types or "Columns" in self.types:
                return value
            raise InvalidArgument(
                f"{self.name}={value!r} is a string, not a list.", hint=f"{self.name}=[{value!r}]"
            )
        items = as_list(value)
        if is_names:
            is_valid = items is not None and all(isinstance(item, str) for item in items)
        else:
            is_valid = items is not None or self._is_single_value(value)
        if not is_valid:
            example = _LIST_EXAMPLES.get(self.name, "['id']")
            raise InvalidArgument(
                f"{self.name}={short_repr(value)} is not a list of names.",
                hint=f"{self.name}={example}",
            )
        return value if items is None else items

    def _is_single_value(self, value: object) -> bool:
        """Return whether a value of this type is accepted in place of a list."""
        if self.name == "expectations" or isinstance(value, Mapping | timedelta):
            return True
        return type(value).__module__.startswith("featurestore.")

    def _check_path(self, value: object) -> object:
        """Return a path, or a value of another type of the parameter.

        Raises:
            InvalidArgument: The value is not a path, or an empty one.
        """
        if value is None and self.allows_none:
            return value
        if isinstance(value, ModuleType) and "ModuleType" in self.type_names:
            return value
        path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            example = _PATH_EXAMPLES.get(self.name, "my-folder")
            raise InvalidArgument(
                f"{self.name}={short_repr(value)} is not a path.", hint=f"{self.name}={example!r}"
            )
        return value


@functools.cache
def _parse_annotation(annotation: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the alternatives of an annotation, and the names of all types in it.

    >>> _parse_annotation("str | Sequence[str] | None")[0]
    ('str', 'Sequence[str]', 'None')
    """
    tree = ast.parse(annotation, mode="eval").body
    alternatives = []
    while isinstance(tree, ast.BinOp):
        alternatives.append(ast.unparse(tree.right))
        tree = tree.left
    alternatives.append(ast.unparse(tree))
    names = set()
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return tuple(reversed(alternatives)), frozenset(names)


def call_arguments(function: Callable[..., Any]) -> list[Argument]:
    """Return the arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [
        Argument.of(parameter, position)
        for position, parameter in enumerate(parameters)
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def list_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function that are lists of names or values.

    >>> list_arguments(store.create_featuregroup)
    ['primary_key', 'partition_by', 'expectations']
    """
    return [argument.name for argument in call_arguments(function) if argument.is_list]


def with_suggestions(function: F) -> F:
    """Wrap a function so that wrong arguments are refused with the correct argument."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, position, convert in _conversions(function):
            if name in kwargs:
                kwargs[name] = convert(kwargs[name])
            elif position is not None and position < len(args):
                args = (*args[:position], convert(args[position]), *args[position + 1 :])
        try:
            return function(*args, **kwargs)
        except FeatureStoreError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            try:
                values = inspect.signature(function).bind(*args, **kwargs).arguments
            except TypeError:
                # The new error contains the facts of Python's message.
                raise argument_error(function, args, kwargs, error) from None
            _check_types(function, call_arguments(function), values, error)
            raise

    return call  # type: ignore[return-value]


# Signatures are inspected at the first call: not at import, and not at each call.
@functools.cache
def _conversions(
    function: Callable[..., Any],
) -> list[tuple[str, int | None, Callable[[object], object]]]:
    """Return the conversions of the arguments of a function, with their names and positions."""
    return [
        (argument.name, argument.position, convert)
        for argument in call_arguments(function)
        for convert in argument.conversions()
    ]


def _check_types(
    function: Callable[..., Any],
    arguments: Iterable[Argument],
    values: Mapping[str, object],
    error: Exception,
) -> None:
    """Check the strings and dicts of a call that failed with an error of Python.

    Raises:
        InvalidArgument: An argument has another type.
    """
    for argument in arguments:
        name = argument.name
        mismatch = argument.describe_mismatch(values[name]) if name in values else None
        if mismatch is not None:
            expected, example = mismatch
            raise InvalidArgument(
                f"{function.__name__}({name}={short_repr(values[name])}): {name} is {expected}, not "
                f"{type(values[name]).__name__}.",
                hint=f"{name}={example}",
            ) from error


def suggest_arguments(owner: T) -> T:
    """Decorate the public methods of a class with argument suggestions."""
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            setattr(owner, name, with_suggestions(member))
        elif isinstance(member, classmethod):
            # A classmethod is a descriptor that contains the function.
            setattr(owner, name, classmethod(with_suggestions(member.__func__)))
    return owner


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several names as a tuple.

    >>> as_tuple("id")
    ('id',)
    """
    return (names,) if isinstance(names, str) else tuple(names)


def check_encodable(argument: str, value: object) -> object:
    r"""Return the value of an argument if UTF-8 can encode its strings.

    JSON and Python strings may contain a lone surrogate, half of a UTF-16 pair, which no file and
    no database can store. Strings in dicts and lists are checked, too.

    Raises:
        InvalidArgument: The message shows the string with an escape.

    >>> check_encodable("tags", {"team": "web"})
    {'team': 'web'}
    >>> check_encodable("description", "cat" + chr(0xD800))
    Traceback (most recent call last):
        ...
    featurestore.errors.InvalidArgument: description= contains 'cat\ud800', which UTF-8 cannot encode.
    Hint: 'cat\ud800'.encode('utf-8', 'replace').decode()
    """
    if isinstance(value, str):
        if not is_utf8_string(value):
            start = next(index for index, letter in enumerate(value) if not is_utf8_string(letter))
            shown = ascii(value[max(0, start - 20) : start + 20])
            raise InvalidArgument(
                f"{argument}= contains {shown}, which UTF-8 cannot encode.",
                hint=f"{shown}.encode('utf-8', 'replace').decode()",
            )
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_encodable(argument, key)
            check_encodable(argument, item)
    elif isinstance(value, list | tuple):
        for item in value:
            check_encodable(argument, item)
    return value


def check_count(value: object, *, argument: str, minimum: int = 0, maximum: int = MAX_INT64) -> int:
    """Return a Python or NumPy integer as an int if it is within the range.

    >>> check_count(3, argument="limit")
    3

    Raises:
        InvalidArgument: The value is not an integer.
        OutOfRange: The value is outside the range.
    """
    try:
        # Python and NumPy treat booleans as integers.
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        # Accepts NumPy integers, and refuses floats, also those without a fraction.
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidArgument(
            f"{argument}={short_repr(value)} is not an integer.",
            hint=f"{argument}={max(minimum, 1)}",
        ) from error
    if not minimum <= number <= maximum:
        raise OutOfRange(
            f"{argument}={short_repr(number)} is not between {minimum} and {maximum}.",
            hint=f"{argument}={minimum if number < minimum else maximum}",
        )
    return number


def check_counts(arguments: Mapping[str, object]) -> None:
    """Check the count arguments of a call; None is not checked."""
    for name in COUNTS.keys() & arguments.keys():
        value = arguments[name]
        if value is not None:
            minimum, maximum = COUNTS[name]
            check_count(value, argument=name, minimum=minimum, maximum=maximum)


def check_version(version: object, *, argument: str = "version") -> int:
    """Return a valid version of a group, dataset, view or model: 1, 2, ...

    >>> check_version(3)
    3
    """
    return check_count(version, argument=argument, minimum=1, maximum=MAX_VERSION)


def parse_version(text: str) -> int:
    """Parse the version digits of a reference.

    >>> parse_version("12")
    12
    """
    digits = text.lstrip("0")
    # Python refuses to parse integers of more than 4,300 digits.
    if len(digits) > len(str(MAX_VERSION)):
        raise OutOfRange(
            f"Version {digits:.20}... is not between 1 and {MAX_VERSION}.", hint="version=1"
        )
    return check_version(int(digits or "0"))


def warn_caller(message: str, category: type[Warning] = UserWarning, *, once: bool = False) -> None:
    """Issue a warning at the position of the first frame outside this library.

    With ``once``, a position gets only one warning of the category in a process, even if the
    messages differ.
    """
    # The depth varies: wrappers of ``functools`` and ``contextlib`` add frames between the library
    # and its caller.
    depth = 1
    for frame in _calling_frames():
        depth += 1
        name = frame.f_globals.get("__name__", "")
        if name != "featurestore" and not name.startswith(_INTERNAL_PREFIXES):
            break
    position = (category, frame.f_code.co_filename, frame.f_lineno)
    if once and position in _warned_positions:
        return
    warnings.warn(message, category, stacklevel=depth)
    # If the warning is raised as an error, the next call raises it again.
    _warned_positions.add(position)


def calling_globals() -> dict[str, Any]:
    """Return the globals of the function that called the calling function."""
    # A loop, because a generator expression would be a further caller.
    for frame in itertools.islice(_calling_frames(), 1, None):
        # Skip the argument-checking wrapper of public calls.
        if frame.f_globals.get("__name__") != __name__:
            return frame.f_globals
    return {}


def calling_position(module: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the file and line of the nearest caller in a module, None if no caller is in it."""
    for frame in _calling_frames():
        if frame.f_globals is module:
            return frame.f_code.co_filename, frame.f_lineno
    return None


def calling_frame(functions: Collection[str], packages: Collection[str]) -> FrameType | None:
    """Return the nearest frame of the given functions and packages.

    Returns None if a frame of another package is reached first.
    """
    for frame in _calling_frames():
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package in packages and frame.f_code.co_name in functions:
            return frame
        if package not in packages and package != "featurestore":
            return None
    return None


def _calling_frames() -> Iterator[FrameType]:
    """Yield the callers of the function that iterates, the nearest first."""
    # The frame below the frame of a generator is the one that iterates over it.
    frame = sys._getframe(1).f_back
    while frame is not None:
        yield frame
        frame = frame.f_back
