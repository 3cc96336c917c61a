"""Conversion of Spark failures to feature store errors.

Spark analyzes a query when it is built and runs it later, so every method of the engine may fail,
and ``translate_calls`` converts the failures of every method. Feature store errors raised by
executors are passed to the driver unchanged.
"""

from __future__ import annotations

import base64
import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pickle import PicklingError
from types import FunctionType
from typing import Any, TypeVar
from urllib.parse import unquote

from featurestore import errors
from featurestore.delta.scan import vacuumed_file_error
from featurestore.errors import (
    EngineError,
    FeatureStoreError,
    StorageError,
    TableDamaged,
    UnsupportedTable,
)

EngineClass = TypeVar("EngineClass", bound=type)
_MARK = "featurestore-error:"
_PACKED = re.compile(rf"{_MARK}([A-Za-z0-9+/=]+):")
_MAX_CAUSES = 10
# Stack traces in messages contain causes that are missing in Java's getCause for executor errors.
_CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_TASK_FAILURE = re.compile(r"Lost task .* executor \S+\): (.*)$", re.MULTILINE)
_CLASS_NAME = re.compile(r"^(?:[a-z]\w*\.)+[A-Z][\w$]*: ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?(?: line \d+ pos \d+;?)?\s*$")
_UNDERLINED = re.compile(r"^== SQL.*==\n(.*)\n([ -]*\^+)", re.MULTILINE)
_MISSING = re.compile(r"(?:File (?:does not exist: )?|file:)(/\S+?\.(?:parquet|json))")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_UNREADABLE = (
    "FAILED_READ_FILE",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_LOG_FILE_NOT_FOUND",
    "is not a Parquet file",
    "FileNotFoundException",
    "Malformed",
)


class ExecutorError(RuntimeError):
    """A feature store error encoded as a message, since Spark transports only messages."""

    def __init__(self, error: FeatureStoreError) -> None:
        # Base64 has no quotes and line breaks, which stack traces would escape or split.
        packed = json.dumps([type(error).__name__, error.message, error.hint])
        super().__init__(f"{_MARK}{base64.b64encode(packed.encode()).decode()}: {error}")


@contextmanager
def encode_errors() -> Iterator[None]:
    """Encode feature store errors in the block, so that the driver can restore them."""
    try:
        yield
    except FeatureStoreError as error:
        raise ExecutorError(error) from error


def translate_calls(engine_class: EngineClass) -> EngineClass:
    """Convert the Spark failures of all public methods of a class to feature store errors.

    The methods raise the error of an executor; ``TableDamaged`` or ``StorageError`` for file and
    disk errors; otherwise ``EngineError`` with the method and Spark's root cause. Its notes have
    the feature plan, and the query that Spark could not analyze.
    """
    for name, member in list(vars(engine_class).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(engine_class, name, _translate_call(member))
    return engine_class


def _translate_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        # The expression after ``except`` is evaluated only if an exception is raised.
        try:
            return method(*arguments, **options)
        except spark_errors() as error:
            # Executors import this module, but need no plans.
            from featurestore.model.plan import FeaturePlan

            store_error = to_store_error(error, call=method.__name__)
            for argument in arguments:
                if isinstance(argument, FeaturePlan):
                    store_error.add_note(str(argument))
            raise store_error from error

    return call


@contextmanager
def translate_errors(call: str) -> Iterator[None]:
    """Convert Spark failures in the block, for rows that are read after a method has returned."""
    try:
        yield
    except spark_errors() as error:
        raise to_store_error(error, call=call) from error


@cache
def spark_errors() -> tuple[type[Exception], ...]:
    """Return the base classes of Spark's errors; none without pyspark."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        return ()
    # PySpark raises a PicklingError for a function that it cannot send to executors.
    return (PySparkException, Py4JError, PicklingError)


def to_store_error(error: BaseException, *, call: str) -> FeatureStoreError:
    """Convert a Spark failure in a call of the engine to a feature store error."""
    text = full_text(error)
    # An error that an executor encoded is more precise than Spark's report of the failed task.
    unpacked = _decode_error(text)
    if unpacked is not None:
        return unpacked
    if "No space left on device" in text or f"Errno {errno.ENOSPC}" in text:
        return StorageError(
            "No space left on the device: the write was not committed.",
            hint="free disk space, then repeat",
        )
    if "URISyntaxException" in text:
        return UnsupportedTable(
            f"The log has a file path that is not a URI: {first_line(error)}",
            hint="read the table with engine='duckdb' and write its rows into a new one",
        )
    if any(sign in text for sign in _UNREADABLE):
        # A file that a vacuum removed is not damage: the error names the versions that can still be
        # read.
        file_match = _MISSING.search(text)
        vacuum_error = (
            None if file_match is None else vacuumed_file_error(unquote(file_match.group(1)))
        )
        if vacuum_error is not None:
            return vacuum_error
        file_name = f"The file {file_match.group(1)!r}" if file_match else "A file of the table"
        return TableDamaged(f"{file_name} is missing or cannot be read: {first_line(error)}")
    reason = first_line(error)
    missing_module = _MISSING_MODULE.match(reason)
    hint = None
    if missing_module is not None:
        module = missing_module.group(1).partition(".")[0]
        hint = (
            f"install {module} on the executors, or send it to them: "
            f"spark.sparkContext.addPyFile('{module}.zip')"
        )
    store_error = EngineError(f"Spark failed in {call}: {reason}", hint=hint)
    _, is_analysis, query = str(error).partition(";\n")
    if is_analysis:
        store_error.add_note(f"Spark's query:\n{query.rstrip()}")
    return store_error


def full_text(error: BaseException) -> str:
    """Return the complete message of an error, including its Java causes."""
    # The errors of Spark Connect have the causes in the stack trace of the server.
    trace = getattr(error, "_stacktrace", None) or ""
    return "\n".join([str(error), *_java_causes(error), trace])


def first_line(error: BaseException) -> str:
    """Summarize an error in one line: the root cause, and the expression marked by Spark.

    A Python exception on an executor takes precedence over the last Java cause.
    """
    text = full_text(error)
    _, traceback, exception_text = text.rpartition("Traceback (most recent call last):\n")
    if traceback:
        for line in exception_text.split("\n"):
            if line and not line.startswith(" "):
                return line
        return "a Python worker failed"
    # The last cause is the root cause.
    causes = _CAUSED_BY.findall(text) or _TASK_FAILURE.findall(text)
    if causes:
        reason = causes[-1]
    elif str(error).startswith("An error occurred while calling"):
        reason = _first_nonempty_line(_java_causes(error)[-1:])
    else:
        reason = _first_nonempty_line([str(error)])
    reason = _SQLSTATE.sub("", _CLASS_NAME.sub("", reason)).strip()
    expression = _marked_expression(text)
    if expression and expression not in reason:
        reason = f"{reason} In: {expression}"
    return reason or type(error).__name__


def _java_causes(error: BaseException) -> list[str]:
    """Return the messages of a Java exception and its causes, with the root cause last."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    messages: list[str] = []
    while java is not None and len(messages) < _MAX_CAUSES:
        messages.append(str(java.toString()))
        java = java.getCause()
    return messages


def _marked_expression(text: str) -> str:
    """Return the query expression that Spark underlines with carets."""
    match = _UNDERLINED.search(text)
    if match is None:
        return ""
    line, marks = match.groups()
    if marks.startswith("-"):  # the parser marks a position, not an expression
        return line.strip()
    return line[marks.index("^") : marks.rindex("^") + 1].strip()


def _first_nonempty_line(texts: list[str]) -> str:
    for text in texts:
        for line in text.split("\n"):
            if line.strip():
                return line.strip()
    return ""


def _decode_error(text: str) -> FeatureStoreError | None:
    """Return the error that an executor encoded in a message, or None without one."""
    match = _PACKED.search(text)
    if match is None:
        return None
    try:
        name, message, hint = json.loads(base64.b64decode(match.group(1)))
    except ValueError:
        return None  # user text that happens to contain the mark
    # The message is untrusted text, so only error classes of the store are created from it.
    error_class = getattr(errors, name, FeatureStoreError)
    if isinstance(error_class, type) and issubclass(error_class, FeatureStoreError):
        return error_class(message, hint=hint)
    return FeatureStoreError(message, hint=hint)
