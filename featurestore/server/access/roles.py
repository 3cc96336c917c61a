"""Roles and scopes: each may what the one before it may, and more."""

from __future__ import annotations

from featurestore.errors import InvalidArgument

NONE, READER, WRITER, ADMIN = "none", "reader", "writer", "admin"
# On the store; "none" reads what a role on a group lets it read. On a group an admin is its owner.
ROLES = (NONE, READER, WRITER, ADMIN)
# What a token may do at most, whatever its user may: a role each.
SCOPES = {"read": READER, "write": WRITER, "admin": ADMIN}


def check_role(role: str, *, of_group: bool = False) -> str:
    """Return a role if it is one.

    >>> check_role("writer")
    'writer'
    """
    known = ROLES[1:] if of_group else ROLES
    if role in known:
        return role
    raise InvalidArgument(f"{role!r} is no role.", hint=f"one of {', '.join(known)}")


def check_scope(scope: str) -> str:
    """Return a scope if it is one."""
    if scope in SCOPES:
        return scope
    raise InvalidArgument(f"{scope!r} is no scope.", hint=f"one of {', '.join(SCOPES)}")


def reaches(role: str, needed: str) -> bool:
    """Tell whether a role may what another one may.

    >>> reaches("admin", "writer"), reaches("reader", "writer")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(needed)


def weaker(left: str, right: str) -> str:
    """Return the role that may less.

    >>> weaker("admin", "reader")
    'reader'
    """
    return min(left, right, key=ROLES.index)


def stronger(left: str, right: str) -> str:
    """Return the role that may more."""
    return max(left, right, key=ROLES.index)
