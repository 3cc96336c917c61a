"""Roles and scopes, in ascending order of permissions."""

from __future__ import annotations

from featurestore.errors import InvalidArgument

NONE, READER, WRITER, ADMIN = "none", "reader", "writer", "admin"
# Roles on the store; users with "none" read only groups on which they have a role. The admin of a
# group is its owner.
ROLES = (NONE, READER, WRITER, ADMIN)
# The highest role that a token of each scope can have.
SCOPES = {"read": READER, "write": WRITER, "admin": ADMIN}


def check_role(role: str, *, of_group: bool = False) -> str:
    """Validate a role.

    >>> check_role("writer")
    'writer'
    """
    known = ROLES[1:] if of_group else ROLES
    if role in known:
        return role
    raise InvalidArgument(f"Unknown role {role!r}.", hint=f"one of {', '.join(known)}")


def check_scope(scope: str) -> str:
    """Validate a scope."""
    if scope in SCOPES:
        return scope
    raise InvalidArgument(f"Unknown scope {scope!r}.", hint=f"one of {', '.join(SCOPES)}")


def includes(role: str, needed: str) -> bool:
    """Return True if a role has all permissions of another role.

    >>> includes("admin", "writer"), includes("reader", "writer")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(needed)


def weaker(first: str, second: str) -> str:
    """Return the role with fewer permissions.

    >>> weaker("admin", "reader")
    'reader'
    """
    return min(first, second, key=ROLES.index)


def stronger(first: str, second: str) -> str:
    """Return the role with more permissions."""
    return max(first, second, key=ROLES.index)
