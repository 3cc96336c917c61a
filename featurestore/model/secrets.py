"""References to secrets in environment variables and files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from featurestore.errors import InvalidArgument

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINT = "secret='env:NAME' names an environment variable, secret='file:/run/secrets/name' a file"


@dataclass(frozen=True)
class SecretReference:
    """Where a secret is: in an environment variable ("env"), or in a file ("file")."""

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_secret(text: str) -> SecretReference:
    """Parse a reference. An invalid text may be the secret itself: the error omits it.

    >>> parse_secret("env:HOOK")
    SecretReference(kind='env', name='HOOK')
    """
    kind, _, name = text.partition(":")
    if kind == "env" and _VARIABLE.fullmatch(name):
        return SecretReference("env", name)
    if kind == "file" and name.strip() and "\0" not in name:
        return SecretReference("file", name)
    raise InvalidArgument("secret= is not a reference to a secret.", hint=_HINT)
