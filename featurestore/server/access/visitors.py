"""Visitors: authentication by password, token or cookie, and roles."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from featurestore.errors import InvalidArgument, NotAllowed, NotSignedIn, missing_extra
from featurestore.recovery import record_files
from featurestore.registry import access
from featurestore.registry.access import User
from featurestore.registry.audit_log import Actor
from featurestore.registry.filtered import RegistryViews
from featurestore.session import Session
from featurestore.store import FeatureStore

if TYPE_CHECKING:
    from argon2 import PasswordHasher

TOKEN_PREFIX = "fs_"
# The passwords that are hashed at the same time. Each takes 64 MiB.
CONCURRENT_HASHES = 2
_HASHES = threading.BoundedSemaphore(CONCURRENT_HASHES)
_MIN_LENGTH, _MAX_LENGTH = 10, 1000


def hash_password(password: str) -> str:
    """Return the argon2 hash of a password.

    Raises:
        InvalidArgument: The password is too short, or so long that hashing it is expensive.
    """
    if not _MIN_LENGTH <= len(password) <= _MAX_LENGTH:
        raise InvalidArgument(
            f"A password must have {_MIN_LENGTH} to {_MAX_LENGTH} characters, not {len(password)}.",
            hint="use a passphrase, such as a sentence",
        )
    with _HASHES:
        return _hasher().hash(password)


def verify_password(hashed: str | None, password: str) -> bool:
    """Return True if a password matches a hash; takes the same time without a hash."""
    from argon2.exceptions import InvalidHashError, VerificationError

    if len(password) > _MAX_LENGTH:
        return False
    known_hash = hashed or _dummy_hash()
    try:
        with _HASHES:
            return _hasher().verify(known_hash, password) and hashed is not None
    except (VerificationError, InvalidHashError):
        return False


@cache
def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ModuleNotFoundError as error:
        raise missing_extra(error.name or "argon2", "server") from None
    return PasswordHasher()


@cache
def _dummy_hash() -> str:
    return _hasher().hash(secrets.token_urlsafe(32))


def new_secret() -> str:
    """Generate a secret with 256 random bits."""
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """Return the SHA-256 digest of a secret, which is stored instead of the secret.

    >>> hash_secret("x")[:8]
    '2d711642'
    """
    # Secrets have 256 random bits, so a fast hash without a salt cannot be reversed by guessing.
    return hashlib.sha256(secret.encode()).hexdigest()


def compute_form_token(cookie: str) -> str:
    """Return the CSRF token for a cookie, which other sites cannot compute."""
    # The token is derived from the secret cookie, so the server needs neither a key nor stored
    # state.
    return hash_secret(f"form of {cookie}")


def verify_form_token(cookie: str, token: str) -> bool:
    """Return True if a string is the CSRF token for a cookie."""
    # The comparison takes constant time, so its duration does not reveal matching characters.
    return secrets.compare_digest(compute_form_token(cookie).encode(), token.encode())


NONE, READER, WRITER, ADMIN = "none", "reader", "writer", "admin"
# Roles on the store; users with "none" can read only groups on which they have a role. The admin of
# a group is its owner.
ROLES = (NONE, READER, WRITER, ADMIN)
# The highest role that a token with each scope can have.
SCOPES = {"read": READER, "write": WRITER, "admin": ADMIN}


def check_role(role: str, *, of_group: bool = False) -> str:
    """Validate a role.

    >>> check_role("writer")
    'writer'
    """
    valid_roles = ROLES[1:] if of_group else ROLES
    if role in valid_roles:
        return role
    raise InvalidArgument(f"Unknown role {role!r}. Available: {', '.join(valid_roles)}.")


def check_scope(scope: str) -> str:
    """Validate a scope."""
    if scope in SCOPES:
        return scope
    raise InvalidArgument(f"Unknown scope {scope!r}. Available: {', '.join(SCOPES)}.")


def role_includes(role: str, needed: str) -> bool:
    """Return True if a role has all permissions of another role.

    >>> role_includes("admin", "writer"), role_includes("reader", "writer")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(needed)


def lower_role(first: str, second: str) -> str:
    """Return the role with fewer permissions.

    >>> lower_role("admin", "reader")
    'reader'
    """
    return min(first, second, key=ROLES.index)


def higher_role(first: str, second: str) -> str:
    """Return the role with more permissions."""
    return max(first, second, key=ROLES.index)


@dataclass(frozen=True)
class Visitor:
    """An authenticated user; the scope of a token limits ``role`` and ``groups``."""

    name: str
    role: str
    groups: Mapping[str, str]
    sign_in_method: str
    sees_all: bool
    cookie: str | None = field(default=None, repr=False)

    @property
    def actor(self) -> Actor:
        """The visitor as an actor in the audit log."""
        return Actor(self.name, self.sign_in_method)

    @property
    def has_role(self) -> bool:
        """Whether the visitor has a role on the store or on any group."""
        return self.role != NONE or self.sees_all or bool(self.groups)

    def may(self, needed: str, group: str | None = None) -> bool:
        """Return True if the visitor has a role on the store or on a group."""
        role = self.role
        if group is not None:
            role = higher_role(role, self.groups.get(group, NONE))
        return role_includes(role, needed)

    def check(self, needed: str, group: str | None = None) -> None:
        """Require a role on the store or on a group.

        Raises:
            NotAllowed: The visitor does not have the role.
        """
        if not self.may(needed, group):
            scope = "the store" if group is None else f"{group!r} or on the store"
            raise NotAllowed(
                f"{self.name} is not allowed to do this: it requires the role {needed} on {scope}.",
                hint="an admin can grant it: featurestore user role, or featurestore access grant",
            )


def visible_to(visitor: Visitor, full_store: FeatureStore, views: RegistryViews) -> FeatureStore:
    """Return the store filtered to the objects that a visitor may read."""
    reads_store = visitor.role != NONE
    registry = views.registry_for(granted=visitor.groups, reads_store=reads_store)
    return FeatureStore(replace(full_store.session, registry=registry))


def visitor_from_token(session: Session, text: str) -> Visitor:
    """Return the visitor that a token authenticates.

    Raises:
        NotSignedIn: The token is unknown, revoked or expired.
    """
    with session.registry.reading() as connection:
        token = access.find_token(connection, hash_secret(text))
        user = None
        if token is not None and not token.expired:
            user = access.find_user(connection, token.user)
        if token is None or user is None:
            raise NotSignedIn(
                "The token is unknown or expired.",
                hint="featurestore token add NAME creates a token",
            )
        return _build_visitor(connection, user, f"token {token.id}", SCOPES[token.scope])


def visitor_from_cookie(session: Session, text: str) -> Visitor | None:
    """Return the user who is signed in with a cookie; None if the session has ended."""
    with session.registry.reading() as connection:
        user = access.find_sign_in(connection, hash_secret(text))
        if user is None:
            return None
        return _build_visitor(connection, user, "browser", ADMIN, cookie=text)


def require_users(session: Session) -> None:
    """Check that the store has at least one user.

    Raises:
        NotAllowed: The store has no users.
    """
    with session.registry.transaction() as connection:
        record_files.restore_access(connection, session.location)
        if not access.list_users(connection):
            raise NotAllowed(
                "The store has no users who can sign in.",
                hint=f"featurestore --location {session.location} user add NAME --role admin",
            )


def _build_visitor(
    connection: Connection,
    user: User,
    sign_in_method: str,
    max_role: str,
    *,
    cookie: str | None = None,
) -> Visitor:
    """Return the visitor for a user whose roles are limited to ``max_role``."""
    groups = {}
    for group, role in access.roles_of(connection, user.name).items():
        groups[group] = lower_role(role, max_role)
    role = lower_role(user.role, max_role)
    # The scope of a token does not restrict reading: a read token of an admin reads everything.
    sees_all = user.role == ADMIN
    return Visitor(user.name, role, groups, sign_in_method, sees_all, cookie)
