"""A parser of Protobuf schemas in their text format (``.proto``), as data: no code is generated or run.

The text may come from a schema registry, so its size, and the nesting of its messages, are bounded.
Options, services, extensions and reserved names do not change values and are skipped.

https://protobuf.dev/reference/protobuf/proto3-spec and proto2-spec
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TEXT_BYTES = 1 << 20
# The limit of protoc.
MAX_MESSAGE_LEVELS = 32
_MAX_NAMES = 100
MAX_FIELD_NUMBER = (1 << 29) - 1

_TOKEN = re.compile(
    r"""
    (?P<skipped>[ \t\r\n\f\v]+|//[^\n]*|/\*.*?\*/)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<symbol>[{}\[\]()<>=;,.:+/-])
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_MAP_KEYS = frozenset(
    f"{prefix}{bits}" for prefix in ("int", "uint", "sint", "fixed", "sfixed") for bits in (32, 64)
) | {"bool", "string"}
_LABELS = ("optional", "required", "repeated")


class ProtoError(ValueError):
    """A text is not a Protobuf schema; the message is the reason, with the line."""


@dataclass(frozen=True)
class ProtoField:
    """A field as declared. ``type_name`` is a scalar type, or the name of a message or enum.

    ``map_key`` is the key type of a map, whose values have the type ``type_name``. ``default`` has
    the tokens of a default of proto2.
    """

    name: str
    number: int
    type_name: str
    label: str = ""
    oneof: str | None = None
    default: tuple[str, ...] = ()
    map_key: str | None = None
    is_group: bool = False


@dataclass(frozen=True)
class ProtoEnum:
    """An enum; ``values`` are names and numbers in the order of declaration."""

    name: str
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ProtoMessage:
    """A message with its nested types. A group is a field and a nested message.

    ``nested`` are the nested messages, with None in place of the implicit entry message of a map.
    """

    name: str
    fields: tuple[ProtoField, ...]
    nested: tuple[ProtoMessage | None, ...]
    enums: tuple[ProtoEnum, ...]

    @property
    def messages(self) -> tuple[ProtoMessage, ...]:
        return tuple(message for message in self.nested if message is not None)


@dataclass(frozen=True)
class ProtoFile:
    """The declarations of one file."""

    syntax: str
    package: str
    imports: tuple[str, ...]
    messages: tuple[ProtoMessage, ...]
    enums: tuple[ProtoEnum, ...]


def parse_proto(text: str) -> ProtoFile:
    """Parse a schema of the syntax proto2 or proto3.

    Raises:
        ProtoError: The text is not a schema, is larger than 1 MiB, or is nested too deep.

    >>> file = parse_proto('syntax = "proto3"; message Click { int64 id = 1; }')
    >>> file.messages[0].fields[0]
    ProtoField(name='id', number=1, type_name='int64', label='', oneof=None, default=(), map_key=None, is_group=False)
    """
    if len(text) > MAX_TEXT_BYTES:
        raise ProtoError(f"the schema has more than {MAX_TEXT_BYTES:,} characters")
    return _ProtoParser(text).parse_file()


def unescape(token: str) -> bytes:
    r"""Return the bytes of a string token with its quotes.

    >>> unescape(r'"a\n\x41\101"')
    b'a\nAA'
    """
    return _ESCAPE.sub(_replace_escape, token[1:-1].encode())


_ESCAPE = re.compile(
    rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))


def _replace_escape(match: re.Match[bytes]) -> bytes:
    hexadecimal, octal, *code_points, character = match.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    code_point = code_points[0] or code_points[1]
    if code_point is None:
        return bytes([_SIMPLE_ESCAPES.get(character[0], character[0])])
    try:
        return chr(int(code_point, 16)).encode()
    except (ValueError, OverflowError) as error:
        raise ProtoError(f"the escape {match[0].decode()} is not a character") from error


class _MessageBody:
    """The declarations of a message body while it is parsed."""

    def __init__(self) -> None:
        self.fields: list[ProtoField] = []
        self.messages: list[ProtoMessage | None] = []
        self.enums: list[ProtoEnum] = []


class _ProtoParser:
    """A recursive descent parser over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens, self._starts = self._split(text)
        self._next = 0
        self._syntax = "proto2"  # of files without a syntax statement

    def _split(self, text: str) -> tuple[list[str], list[int]]:
        """Split a text into tokens and their positions; the last token is empty."""
        tokens: list[str] = []
        starts: list[int] = []
        position = len("\ufeff") if text.startswith("\ufeff") else 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error_at(position, f"unexpected character {text[position]!r}")
            if match.lastgroup != "skipped":
                tokens.append(match[0])
                starts.append(position)
            position = match.end()
        return [*tokens, ""], [*starts, len(text)]

    def parse_file(self) -> ProtoFile:
        package = ""
        imports: list[str] = []
        body = _MessageBody()
        while self._peek():
            keyword = self._peek()
            if keyword in ("syntax", "edition"):
                self._syntax = self._parse_syntax()
            elif keyword == "package":
                self._take()
                package = self._type_name()
                self._expect(";")
            elif keyword == "import":
                self._take()
                if self._peek() in ("public", "weak"):
                    self._take()
                imports.append(self._text_of_string())
                self._expect(";")
            elif not self._parse_type(body, level=0):
                self._skip_statement(("option", "service", "extend", ";"))
        messages = tuple(message for message in body.messages if message is not None)
        return ProtoFile(self._syntax, package, tuple(imports), messages, tuple(body.enums))

    def _parse_syntax(self) -> str:
        keyword = self._take()
        self._expect("=")
        syntax = self._text_of_string()
        self._expect(";")
        # The defaults of an edition depend on its options, which are not read.
        if keyword == "edition" or syntax not in ("proto2", "proto3"):
            raise self._error(
                f"{keyword} {syntax!r} is not supported, only syntax proto2 and proto3"
            )
        return syntax

    def _parse_type(self, body: _MessageBody, *, level: int) -> bool:
        """Parse a message or an enum, and return whether it was one."""
        if self._peek() == "message":
            self._take()
            body.messages.append(self._parse_message(self._name(), level=level + 1))
            return True
        if self._peek() == "enum":
            body.enums.append(self._parse_enum())
            return True
        return False

    def _parse_message(self, name: str, *, level: int) -> ProtoMessage:
        if level > MAX_MESSAGE_LEVELS:
            raise self._error(f"messages are nested deeper than {MAX_MESSAGE_LEVELS} levels")
        body = _MessageBody()
        self._expect("{")
        while self._peek() != "}":
            if self._parse_type(body, level=level):
                continue
            if self._peek() == "oneof":
                self._parse_oneof(body, level=level)
            elif self._peek() in ("option", "extend", "extensions", "reserved", ";"):
                self._skip_statement(("option", "extend", "extensions", "reserved", ";"))
            else:
                self._parse_field(body, oneof=None, level=level)
        self._expect("}")
        self._refuse_repeated([(field.name, field.number) for field in body.fields], name)
        return ProtoMessage(name, tuple(body.fields), tuple(body.messages), tuple(body.enums))

    def _parse_oneof(self, body: _MessageBody, *, level: int) -> None:
        self._take()
        name = self._name()
        self._expect("{")
        while self._peek() != "}":
            if self._peek() in ("option", ";"):
                self._skip_statement(("option", ";"))
            else:
                self._parse_field(body, oneof=name, level=level)
        self._expect("}")

    def _parse_field(self, body: _MessageBody, *, oneof: str | None, level: int) -> None:
        label = self._take() if self._peek() in _LABELS else ""
        if label and oneof is not None:
            raise self._error(f"{label!r} is not allowed in a oneof")
        if not label and oneof is None and self._syntax == "proto2" and self._peek() != "map":
            raise self._error(f"expected {', '.join(_LABELS)} or another statement")
        map_key = None
        is_group = self._peek() == "group" and self._syntax == "proto2"
        if is_group:
            self._take()
            type_name = name = self._name()
        elif self._peek() == "map" and self._peek(1) == "<" and not label and oneof is None:
            map_key, type_name = self._map_types()
            body.messages.append(None)
            name = self._name()
        else:
            type_name = self._type_name()
            name = self._name()
        self._expect("=")
        number = self._field_number()
        default = self._parse_field_options() if self._peek() == "[" else ()
        if is_group:
            # protoc names the field of a group in lower case.
            name = name.lower()
            body.messages.append(self._parse_message(type_name, level=level + 1))
        else:
            self._expect(";")
        field = ProtoField(name, number, type_name, label, oneof, default, map_key, is_group)
        body.fields.append(field)

    def _map_types(self) -> tuple[str, str]:
        """Parse the types of keys and values of a map."""
        self._take()
        self._expect("<")
        key = self._name()
        if key not in _MAP_KEYS:
            raise self._error(f"{key} is not a type of map keys")
        self._expect(",")
        value = self._type_name()
        self._expect(">")
        return key, value

    def _parse_enum(self) -> ProtoEnum:
        self._take()
        name = self._name()
        values: list[tuple[str, int]] = []
        self._expect("{")
        while self._peek() != "}":
            # A value may have the name of a statement.
            if self._peek() in ("option", "reserved", ";") and self._peek(1) != "=":
                self._skip_statement(("option", "reserved", ";"))
                continue
            value_name = self._name()
            self._expect("=")
            sign = -1 if self._peek() == "-" else 1
            if sign < 0:
                self._take()
            values.append((value_name, sign * self._integer()))
            if self._peek() == "[":
                self._skip_block()
            self._expect(";")
        self._expect("}")
        if not values:
            raise self._error(f"the enum {name} has no values")
        return ProtoEnum(name, tuple(values))

    def _parse_field_options(self) -> tuple[str, ...]:
        """Parse the options of a field, and return the tokens of its default."""
        default: tuple[str, ...] = ()
        self._expect("[")
        while True:
            option = self._tokens_until("=")
            self._expect("=")
            value = self._tokens_until(",", "]")
            if option == ["default"]:
                default = tuple(value)
            if self._take() == "]":
                return default

    def _tokens_until(self, *ends: str) -> list[str]:
        """Return the tokens before the next end that is outside of brackets."""
        first = self._next
        while self._peek() not in ends:
            if self._peek() in _CLOSING:
                self._skip_block()
            elif not self._take():
                raise self._error("the text ends within an option")
        return self._tokens[first : self._next]

    def _skip_statement(self, allowed: Sequence[str]) -> None:
        """Skip a statement up to its semicolon, or a block without one."""
        if self._peek() not in allowed:
            raise self._error(f"unexpected {self._peek()!r}")
        has_block = self._peek() in ("service", "extend")
        while self._peek() != ";":
            if self._peek() in _CLOSING:
                is_block = self._peek() == "{"
                self._skip_block()
                if is_block and has_block:
                    return
            elif not self._take():
                raise self._error("the text ends within a statement")
        self._take()

    def _skip_block(self) -> None:
        """Skip brackets and their content."""
        expected = [_CLOSING[self._take()]]
        while expected:
            token = self._take()
            if token in _CLOSING:
                expected.append(_CLOSING[token])
            elif token == expected[-1]:
                expected.pop()
            elif not token or token in _CLOSING.values():
                raise self._error(f"expected {expected[-1]!r}")

    def _refuse_repeated(self, fields: Sequence[tuple[str, int]], message: str) -> None:
        if any(len(set(values)) < len(values) for values in zip(*fields, strict=True)):
            raise self._error(f"two fields of {message} have the same name or number")

    def _field_number(self) -> int:
        number = self._integer()
        if not 1 <= number <= MAX_FIELD_NUMBER:
            raise self._error(f"{number} is not a field number")
        return number

    def _integer(self) -> int:
        token = self._take()
        try:
            return parse_integer(token)
        except ValueError:
            raise self._error(f"expected an integer, not {token!r}") from None

    def _text_of_string(self) -> str:
        token = self._take()
        if token[:1] not in ('"', "'"):
            raise self._error(f"expected a string, not {token!r}")
        return unescape(token).decode(errors="replace")

    def _name(self) -> str:
        token = self._take()
        if not token.isidentifier():
            raise self._error(f"expected a name, not {token!r}")
        return token

    def _type_name(self) -> str:
        """Parse a name with dots, such as ``.shop.Click``."""
        names = ""
        if self._peek() == ".":
            names = self._take()
        names += self._name()
        while self._peek() == ".":
            names += self._take() + self._name()
            if names.count(".") > _MAX_NAMES:
                raise self._error(f"a name has more than {_MAX_NAMES} dots")
        return names

    def _expect(self, symbol: str) -> None:
        token = self._take()
        if token != symbol:
            raise self._error(f"expected {symbol!r}, not {token!r}")

    def _peek(self, skipped: int = 0) -> str:
        return self._tokens[min(self._next + skipped, len(self._tokens) - 1)]

    def _take(self) -> str:
        """Return the next token; at the end of the text, the empty token."""
        token = self._peek()
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _error(self, reason: str) -> ProtoError:
        return self._error_at(self._starts[max(self._next - 1, 0)], reason)

    def _error_at(self, position: int, reason: str) -> ProtoError:
        line = self._text.count("\n", 0, position) + 1
        return ProtoError(f"line {line}: {reason}")


def parse_integer(token: str) -> int:
    """Parse an integer token: decimal, hexadecimal or octal.

    >>> parse_integer("0x10"), parse_integer("010"), parse_integer("10")
    (16, 8, 10)
    """
    if token[:2].lower() == "0x":
        return int(token, 16)
    return int(token, 8 if len(token) > 1 and token[0] == "0" else 10)
