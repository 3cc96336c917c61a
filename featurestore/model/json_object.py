"""JSON objects of files: typed access with errors that name the JSON path, and checksums.

The checksum of a sealed object detects any changed byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from featurestore.errors import FormatTooNew

T = TypeVar("T")
# The contents of a JSON object, to read and to write.
JsonMapping: TypeAlias = Mapping[str, Any]
JsonDict: TypeAlias = dict[str, Any]
MAX_INT64 = 2**63 - 1

MAX_REPR = 60  # characters of a value in an error

CHECKSUM = "checksum"
LINE_CHECKSUM_LENGTH = 16  # of hexadecimal digits


class MalformedJson(ValueError):
    """Error for a missing value or a value of the wrong type; the message names its path.

    Args:
        problem: What is wrong, or the whole message without a path.
        path: The path of the value, "" for the document; None: the error names no value.

    >>> str(MalformedJson("is missing", path="rows").within("splits[0]"))
    'splits[0].rows is missing'
    """

    def __init__(self, problem: str, path: str | None = None) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return (
            self.problem if self.path is None else f"{self.path or 'the document'} {self.problem}"
        )

    def within(self, parent: str) -> MalformedJson:
        """Return the error with the path of the object or array that contains the value."""
        if self.path is None:
            return self
        separator = "." if parent and self.path and not self.path.startswith("[") else ""
        return MalformedJson(self.problem, f"{parent}{separator}{self.path}")


@contextmanager
def translate_parse_errors(subject: str) -> Iterator[None]:
    """Translate errors that occur while parsing stored JSON to MalformedJson.

    >>> with translate_parse_errors("statistics"):
    ...     {}["rows"]
    Traceback (most recent call last):
    featurestore.model.json_object.MalformedJson: statistics: KeyError 'rows'
    """
    try:
        yield
    except MalformedJson as error:
        if error.path is None:
            raise
        raise MalformedJson(f"{subject}: {error}") from error
    # The errors that damaged JSON, numbers, times and ``.npz`` archives cause.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OSError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
    ) as error:
        raise MalformedJson(f"{subject}: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class JsonObject:
    """A JSON object and its path in the file, for error messages.

    >>> JsonObject({"rows": -1}, "splits[0]").number("rows")
    Traceback (most recent call last):
    featurestore.model.json_object.MalformedJson: splits[0].rows is -1, not an integer from 0 to
    9223372036854775807
    """

    data: JsonMapping
    path: str = ""

    @classmethod
    def from_value(cls, value: object, path: str = "") -> JsonObject:
        """Return a value as a JsonObject; raise MalformedJson for other types."""
        if not isinstance(value, Mapping):
            raise wrong_value_error(value, "an object", path=path)
        return cls(value, path)

    def __contains__(self, name: str) -> bool:
        return name in self.data

    def get(self, name: str) -> Any:
        """Return a required value of any type."""
        if name not in self.data:
            raise MalformedJson("is missing", self._path_of(name))
        return self.data[name]

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong_type_error(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None if the value is null or missing."""
        if self.data.get(name) is None:
            return None
        return self.text(name)

    def number(self, name: str, *, minimum: int = 0, maximum: int = MAX_INT64) -> int:
        """Return an integer within a range."""
        value = self.get(name)
        # Booleans are integers in Python, but not in JSON.
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.wrong_type_error(name, f"an integer from {minimum} to {maximum}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.get(name)
        if not isinstance(value, bool):
            raise self.wrong_type_error(name, "true or false")
        return value

    def array(self, name: str) -> list[Any]:
        """Return an array."""
        value = self.get(name)
        if not isinstance(value, list | tuple):
            raise self.wrong_type_error(name, "an array")
        return list(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an array of strings."""
        value = self.array(name)
        if not all(isinstance(item, str) for item in value):
            raise self.wrong_type_error(name, "an array of strings")
        return tuple(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an array of non-negative integers."""
        # An object with indices as names, so that errors name the path ``shape.1``.
        values = dict(zip(map(str, range(MAX_INT64)), self.array(name), strict=False))
        elements = JsonObject(values, self._path_of(name))
        return tuple(map(elements.number, values))

    def real(self, name: str) -> float:
        """Return a number."""
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong_type_error(name, "a number")
        return value

    def optional_real(self, name: str) -> float | None:
        """Return a number, or None if the value is null or missing."""
        if self.data.get(name) is None:
            return None
        return self.real(name)

    def read_values(self, read: Callable[[JsonObject, str], T]) -> dict[str, T]:
        """Return all values of the object, each read with one of the methods above.

        >>> JsonObject({"a": 1}).read_values(JsonObject.number)
        {'a': 1}
        """
        values = {}
        for name in self.data:
            values[name] = read(self, name)
        return values

    def object(self, name: str) -> JsonObject:
        """Return an object."""
        return JsonObject.from_value(self.get(name), self._path_of(name))

    def objects(self, name: str) -> list[JsonObject]:
        """Return an array of objects."""
        path = self._path_of(name)
        return [
            JsonObject.from_value(item, f"{path}[{index}]")
            for index, item in enumerate(self.array(name))
        ]

    def wrong_type_error(self, name: str, expected: str) -> MalformedJson:
        """Return the error for a value of a wrong type."""
        return wrong_value_error(self.data.get(name), expected, path=self._path_of(name))

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def wrong_value_error(value: object, expected: str, *, path: str = "") -> MalformedJson:
    """Return the error for a value that is not ``expected``, such as "a string"."""
    text = repr(value)
    if len(text) > MAX_REPR:
        text = f"{text[: MAX_REPR - 3]}..."
    return MalformedJson(f"is {text}, not {expected}", path)


def check_format(format_number: object, newest: int, *, subject: str) -> None:
    """Raise an error if a newer release wrote a stored object.

    Args:
        format_number: The stored number of the format; values of other types are ignored.
        newest: The newest format that this release reads.
        subject: The beginning of the error message.

    Raises:
        FormatTooNew: The format is newer; the message has both numbers.
    """
    if isinstance(format_number, int) and format_number > newest:
        raise FormatTooNew(
            f"{subject} has format {format_number}; this release reads up to {newest}.",
            hint="pip install --upgrade featurestore",
        )


def seal(data: JsonMapping) -> bytes:
    """Serialize a JSON object with a checksum, as stored in files.

    >>> unseal(seal({"name": "late_flights"}))["name"]
    'late_flights'
    """
    return _serialize({**data, CHECKSUM: hashlib.sha256(_serialize(data)).hexdigest()})


def unseal(content: bytes) -> JsonDict:
    """Parse the output of ``seal`` and verify its checksum.

    Raises:
        MalformedJson: The contents differ from what was written.
    """
    data = parse_object(content)
    payload = {name: value for name, value in data.items() if name != CHECKSUM}
    # Comparing the complete bytes also detects changes that parse to equal values: whitespace,
    # duplicate names, other forms of a number.
    if seal(payload) != content:
        raise MalformedJson("its checksum does not match")
    return data


def parse_object(content: bytes) -> JsonDict:
    """Parse the JSON object of a file without verifying its checksum.

    Raises:
        MalformedJson: The content is not a JSON object.
    """
    try:
        data = json.loads(content)
    # Deeply nested JSON exceeds the recursion limit of the parser.
    except (ValueError, RecursionError) as error:
        raise MalformedJson(str(error)) from error
    if not isinstance(data, dict):
        raise MalformedJson("it is not a JSON object")
    return data


def seal_line(data: JsonMapping) -> str:
    """Serialize a JSON object as one line with a checksum at the end, without a newline.

    >>> seal_line({"step": 1})
    '{"step": 1, "checksum": "66acd07fcea20439"}'
    """
    # The checksum covers the line without the checksum itself, which is its last entry.
    digest = hashlib.sha256(json.dumps(data).encode()).hexdigest()[:LINE_CHECKSUM_LENGTH]
    return json.dumps({**data, CHECKSUM: digest})


def unseal_line(line: str) -> JsonDict:
    """Parse the output of ``seal_line`` and verify its checksum.

    Raises:
        MalformedJson: The line differs from what was written.
    """
    data = parse_object(line.encode("utf-8", errors="surrogatepass"))
    payload = {name: value for name, value in data.items() if name != CHECKSUM}
    if seal_line(payload) != line:
        raise MalformedJson("its checksum does not match")
    return data


def float_value(value: float) -> float | str:
    """Return a float as a JSON value; NaN and infinity, which JSON lacks, become strings.

    >>> float_value(1.5), float_value(float("nan")), float_value(-float("inf"))
    (1.5, 'NaN', '-Infinity')
    """
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _serialize(data: JsonMapping) -> bytes:
    # A damaged file may contain a lone surrogate, which must not make the comparison fail.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", errors="surrogatepass")
