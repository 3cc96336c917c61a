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

from featurestore.arrow.lists import as_list
from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    OutOfRange,
    UnknownArgument,
    did_you_mean,
    listing,
)
from featurestore.model.encodable import check_encodable
from featurestore.model.words import ALIASES, EQUAL_VALUES, REPLACEMENTS, translate

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

# The annotation of a dict, without other types.
_MAPPING = re.compile(r"(Mapping|dict)\[[^]]*\]+")

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

_DICT_EXAMPLES = {
    "environment": "{'OMP_NUM_THREADS': '2'}",
    "input_times": "{'trips': 'left_at'}",
    "inputs": "{'trips': 'trips'}",
    "metrics": "{'late_share': 'avg(late)'}",
    "storage_options": "{'aws_region': 'eu-central-1'}",
    "tags": "{'team': 'traffic'}",
    "versions": "{'weather': 1}",
}

# Positions of warnings that are issued once.
_warned_positions: set[tuple[type[Warning], str, int]] = set()

# Parameters with rows, which may be many.
_ROWS = ("df", "entities", "entity", "labels", "rows", "subject")
_STRING = re.compile(r"\bstr\b")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)

# The members of a FeatureFrame that completion and hints list.
FRAME_MEMBERS = (
    "columns", "count", "coverage", "drop", "filter", "head", "sample", "schema", "select", "show",
    "to_arrow", "to_batches", "to_numpy", "to_pandas", "to_polars", "to_spark",
)  # fmt: skip


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
            _check_types(function, args, kwargs, error)
            raise
        except TypeError as error:
            # Only a TypeError of the call itself has no frame below this one.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                _check_types(function, args, kwargs, error)
                raise
            # The new error contains the facts of Python's message.
            raise _argument_error(function, args, kwargs, error) from None

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
            f"{argument}={_short_repr(value)} is not an integer.",
            hint=f"{argument}={max(minimum, 1)}",
        ) from error
    if not minimum <= number <= maximum:
        raise OutOfRange(
            f"{argument}={_short_repr(number)} is not between {minimum} and {maximum}.",
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
    return {each.name: each for each in _parameters(function) if _is_list(each)}


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
            f"{parameter.name}={_short_repr(value)} is not a list of names.",
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
            f"{name}={_short_repr(value)} is not a path.", hint=f"{name}={example!r}"
        )
    return value


def _check_types(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """Check the strings and dicts of a call that failed with an error of Python.

    Raises:
        InvalidArgument: An argument has another type.
    """
    signature = inspect.signature(function)
    for name, value in signature.bind_partial(*args, **kwargs).arguments.items():
        annotation = str(signature.parameters[name].annotation)
        kind = annotation.removesuffix(" | None")
        if value is None and kind != annotation:
            continue
        if kind == "str" and not isinstance(value, str):
            expected, example = "a string", "'...'"
        elif _MAPPING.fullmatch(kind) and not isinstance(value, Mapping):
            expected, example = "a dict", _DICT_EXAMPLES.get(name, "{}")
        else:
            continue
        raise InvalidArgument(
            f"{function.__name__}({name}={_short_repr(value)}): {name} is {expected}, not "
            f"{type(value).__name__}.",
            hint=f"{name}={example}",
        ) from error


def _argument_error(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> UnknownArgument:
    """Return the error for call arguments that do not match the signature."""
    parameters = dict(inspect.signature(function).parameters)
    for receiver in ("self", "cls"):
        if receiver in parameters:
            del parameters[receiver]
            # The first argument of a method is its object, which the caller does not write.
            args = args[1:]
    name = function.__name__
    positional, keyword = [], []
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keyword.append(parameter.name)
        else:
            positional.append(parameter.name)
    accepted_names = [*positional, *keyword]
    unknown = [parameter for parameter in kwargs if parameter not in accepted_names]
    if unknown:
        suggestions = [_suggest_replacement(parameter, accepted_names) for parameter in unknown]
        return UnknownArgument(
            f"{name}() has no argument {listing(unknown)}.",
            hint="; ".join(dict.fromkeys(suggestions)),
        )
    if len(args) > len(positional):
        return _too_many_arguments_error(name, args, positional, keyword)
    missing_names = []
    for parameter in parameters.values():
        is_passed = parameter.name in kwargs or parameter.name in positional[: len(args)]
        if parameter.default is inspect.Parameter.empty and not is_passed:
            missing_names.append(parameter.name)
    if missing_names:
        required = [f"{each}=..." for each in missing_names if each in keyword]
        more = required or (["..."] if keyword else [])
        return UnknownArgument(
            f"{name}() needs {listing(missing_names)}.",
            hint=f"{name}({', '.join([*positional, *more])})",
        )
    # Python's message names the argument.
    return UnknownArgument(f"{name}() got an argument twice: {error}.")


def _suggest_replacement(name: str, accepted_names: Sequence[str]) -> str:
    """Return the suggested replacement for an unknown argument."""
    if name in REPLACEMENTS:
        return f"{name}: {REPLACEMENTS[name]}"
    for alias in ALIASES.get(name, ()):
        if alias in accepted_names:
            return f"use {alias}= instead of {name}="
    return (
        did_you_mean(name, accepted_names, write="{}=", most=1)
        or f"available arguments: {listing(accepted_names, limit=40)}"
    )


def _too_many_arguments_error(
    name: str, args: Sequence[Any], positional: Sequence[str], keyword: Sequence[str]
) -> UnknownArgument:
    """Return the error for too many positional arguments."""
    hint = "it has no other arguments"
    if keyword:
        examples = [f"{word}=..." for word in keyword[: len(args) - len(positional)]]
        hint = (
            f"pass other arguments by name, for example {', '.join(examples)}; "
            f"available: {listing(keyword, limit=40)}"
        )
    return UnknownArgument(
        f"{name}() got {len(args)} positional arguments. Allowed: {listing(positional)}.", hint=hint
    )


def _short_repr(value: object) -> str:
    # Python refuses to format integers of more than 4,300 digits.
    if isinstance(value, int) and abs(value) > 10**40:
        return f"<an integer of {value.bit_length()} bits>"
    return " ".join(repr(value).split())[:80]


def missing_member_error(owner: object, name: str, frame: str) -> AttributeError:
    """Return the error for an unknown attribute; ``frame`` is the call that returns the rows."""
    hint = f"\nHint: {frame}.{name}" if name in FRAME_MEMBERS else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}")
