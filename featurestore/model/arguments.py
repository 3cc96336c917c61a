"""Arguments of public calls: suggestions for unknown arguments, count checks, and caller positions.

Counts are versions, limits, offsets and row numbers.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    EQUAL_VALUES,
    argument_error,
    check_types,
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

# Annotations of lists, also by their aliases, and annotations of lists of names only.
_LISTS = re.compile(r"\b(Sequence|Columns|Windows|JoinKey)\b")
_NAMES = re.compile(r"(?P<name>str \| |)(Sequence\[str\]|(?P<alias>Columns))( \| None)?")

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
_STRING = re.compile(r"\bstr\b")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)


def with_suggestions(function: F) -> F:
    """Wrap a function so that a TypeError suggests the correct argument."""
    # Inspect the signature at decoration, not at each call.
    conversions = _argument_conversions(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, position, convert in conversions:
            if name in kwargs:
                kwargs[name] = convert(kwargs[name])
            elif position is not None and position < len(args):
                args = (*args[:position], convert(args[position]), *args[position + 1 :])
        try:
            return function(*args, **kwargs)
        except FeatureStoreError:
            raise
        except (AttributeError, ValueError) as error:
            check_types(function, args, kwargs, error)
            raise
        except TypeError as error:
            # Only a TypeError of the call itself has no frame below this one.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                check_types(function, args, kwargs, error)
                raise
            # The new error contains the facts of Python's message.
            raise argument_error(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


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
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
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
    # Frame 0 is this function and frame 1 is the function that calls it.
    frame = sys._getframe(2)
    # Skip the argument-checking wrapper of public calls.
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals


def calling_position(module: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the file and line of the nearest caller in a module, None if no caller is in it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def calling_frame(functions: Collection[str], packages: Collection[str]) -> FrameType | None:
    """Return the nearest frame of the given functions and packages.

    Returns None if a frame of another package is reached first.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package in packages and frame.f_code.co_name in functions:
            return frame
        if package not in packages and package != "featurestore":
            return None
        frame = frame.f_back
    return None


def list_arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function that are lists of names or values.

    >>> list(list_arguments(store.create_featuregroup))
    ['primary_key', 'partition_by', 'expectations']
    """
    return {parameter.name: parameter for parameter in _parameters(function) if _is_list(parameter)}


def _parse_list(value: object, parameter: inspect.Parameter) -> object:
    """Return an argument as a list, and a value of another type of the parameter unchanged.

    Raises:
        InvalidArgument: The value has no type of the parameter.
    """
    if value is None and (parameter.default is None or "None" in str(parameter.annotation)):
        return value
    names = _NAMES.fullmatch(str(parameter.annotation))
    if isinstance(value, str):
        if names is None or names["name"] or names["alias"]:
            return value
        raise InvalidArgument(
            f"{parameter.name}={value!r} is a string, not a list.",
            hint=f"{parameter.name}=[{value!r}]",
        )
    items = as_list(value)
    if names is not None:
        is_valid = items is not None and all(isinstance(item, str) for item in items)
    else:
        is_valid = items is not None or _is_single_value(value, parameter)
    if not is_valid:
        example = _LIST_EXAMPLES.get(parameter.name, "['id']")
        raise InvalidArgument(
            f"{parameter.name}={short_repr(value)} is not a list of names.",
            hint=f"{parameter.name}={example}",
        )
    return value if items is None else items


def _is_single_value(value: object, parameter: inspect.Parameter) -> bool:
    """Return whether a parameter accepts a value of this type in place of a list."""
    if parameter.name == "expectations" or isinstance(value, Mapping | timedelta):
        return True
    return type(value).__module__.startswith("featurestore.")


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def _is_count(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is a count.

    ``before=`` is a version in some calls and a table in others: the annotation decides.
    """
    # Annotations are strings in modules with postponed evaluation.
    return parameter.name in COUNTS and bool(re.search(r"\bint\b", str(parameter.annotation)))


def _is_list(parameter: inspect.Parameter) -> bool:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return False
    return parameter.name == "expectations" or bool(_LISTS.search(str(parameter.annotation)))


def _argument_conversions(
    function: Callable[..., Any],
) -> list[tuple[str, int | None, Callable[[object], object]]]:
    """Return the checked parameters of a function: name, position and conversion.

    Keyword-only parameters have the position None. Counts and paths are checked, collections become
    lists, and words of other libraries are translated.
    """
    conversions: list[tuple[str, int | None, Callable[[object], object]]] = []
    for index, parameter in enumerate(_parameters(function)):
        position = None
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            position = index
        name = parameter.name
        # Rows have their own errors, with the column; paths may contain any bytes.
        is_text = _STRING.search(str(parameter.annotation)) and name not in _ROWS
        if is_text and "os.PathLike" not in str(parameter.annotation):
            conversions.append((name, position, functools.partial(check_encodable, name)))
        if _is_count(parameter):
            conversions.append((name, position, functools.partial(_checked_count, name)))
        if _is_list(parameter):
            parse = functools.partial(_parse_list, parameter=parameter)
            conversions.append((name, position, parse))
        if "os.PathLike" in str(parameter.annotation):
            check = functools.partial(_checked_path, parameter=parameter)
            conversions.append((name, position, check))
        if name in EQUAL_VALUES:
            conversions.append((name, position, functools.partial(translate, name)))
    return conversions


def _checked_count(name: str, value: object) -> object:
    check_counts({name: value})
    return value


def _checked_path(value: object, *, parameter: inspect.Parameter) -> object:
    """Return a path, or a value of another type that the annotation of the parameter contains.

    Raises:
        InvalidArgument: The value is not a path, or an empty one.
    """
    annotation, name = str(parameter.annotation), parameter.name
    if value is None and "None" in annotation:
        return value
    if isinstance(value, ModuleType) and "ModuleType" in annotation:
        return value
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        example = _PATH_EXAMPLES.get(name, "my-folder")
        raise InvalidArgument(
            f"{name}={short_repr(value)} is not a path.", hint=f"{name}={example!r}"
        )
    return value
