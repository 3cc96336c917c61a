"""Changes to users, tokens, roles and private groups, recorded in the audit log and access.json."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.engine import Connection

from featurestore.errors import (
    FeatureGroupNotFound,
    InvalidArgument,
    InvalidName,
    NotAllowed,
    TokenNotFound,
    UserExists,
    UserNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.times import parse_duration, shift_time, utc_now
from featurestore.recovery import record_files
from featurestore.registry import access, audit_log, featuregroups
from featurestore.registry.access import Token, User
from featurestore.registry.audit_log import Actor
from featurestore.registry.hidden import find_opened_objects
from featurestore.server.access import visitors
from featurestore.server.access.visitors import TOKEN_PREFIX, hash_password, hash_secret, new_secret
from featurestore.session import Session

COMMAND_LINE = "command line"
_USER_NAME = re.compile(r"[a-z0-9][a-z0-9_.@+-]{0,126}")
_MAX_LABEL_LENGTH = 200


@contextmanager
def access_transaction(session: Session) -> Iterator[Connection]:
    """Yield a connection for a change, and then write the new state to access.json.

    Changes are serialized; otherwise the file could miss a concurrent change.
    """
    with (
        session.registry.transaction() as connection,
        record_files.writing_access(connection, session.location),
    ):
        yield connection


def check_user_name(name: str) -> str:
    """Validate a user name, which may be an e-mail address.

    >>> check_user_name("ann@example.org")
    'ann@example.org'
    """
    if _USER_NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{name!r} is not a valid user name.",
        hint="use at most 127 lowercase letters, digits and . _ @ + -, and start with a letter "
        "or digit",
    )


def add_user(
    session: Session,
    actor: Actor,
    name: str,
    *,
    role: str = visitors.READER,
    password: str | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> User:
    """Add a user; without a password the user can only sign in with a provider or a token.

    Raises:
        UserExists: The user name already exists.
        InvalidArgument: Issuer or subject is missing or empty.
    """
    check_user_name(name)
    visitors.check_role(role)
    # An empty subject would match a token without one.
    if (issuer, subject) != (None, None) and not (issuer and subject):
        raise InvalidArgument(
            f"The issuer {issuer!r} and the subject {subject!r} must both have a value.",
            hint=f"featurestore user add {name} --issuer https://login.example.org --subject 7f3a",
        )
    # Hashing is slow by design, so it must not extend the locked transaction.
    hashed = None if password is None else hash_password(password)
    with access_transaction(session) as connection:
        if access.find_user(connection, name) is not None:
            raise UserExists(
                f"User {name!r} already exists.", hint=f"featurestore user role {name} {role}"
            )
        access.put_user(
            connection, name, role=role, password=hashed, issuer=issuer, subject=subject
        )
        audit_log.add(connection, actor, "add user", name, {"role": role})
        return get_user(connection, name)


def remove_user(session: Session, actor: Actor, name: str) -> None:
    """Remove a user with all tokens, roles and sign-ins.

    Raises:
        UserNotFound: The user does not exist.
        NotAllowed: The user is the last admin.
    """
    with access_transaction(session) as connection:
        user = get_user(connection, name)
        # The only user may be removed, even an admin: a store without users needs none.
        if user.role == visitors.ADMIN and len(access.list_users(connection)) > 1:
            _check_another_admin(connection, name)
        access.remove_user(connection, name)
        audit_log.add(connection, actor, "remove user", name)


def set_role(session: Session, actor: Actor, name: str, role: str) -> None:
    """Set the role of a user on the store."""
    visitors.check_role(role)
    with access_transaction(session) as connection:
        user = get_user(connection, name)
        if user.role == visitors.ADMIN and role != visitors.ADMIN:
            _check_another_admin(connection, name)
        access.change_user(connection, name, role=role)
        audit_log.add(connection, actor, "set role", name, {"role": role, "before": user.role})


def set_password(session: Session, actor: Actor, name: str, password: str) -> None:
    """Change the password of a user and end all of the user's browser sessions."""
    hashed = hash_password(password)
    with access_transaction(session) as connection:
        get_user(connection, name)
        access.change_user(connection, name, password=hashed)
        # A stolen session must not survive the change of the password.
        access.remove_sign_ins(connection, name)
        audit_log.add(connection, actor, "set password", name)


def make_token(
    session: Session,
    actor: Actor,
    name: str,
    *,
    scope: str = "read",
    label: str = "",
    expires: timedelta | str | None = "90d",
) -> tuple[str, Token]:
    """Create a token; return its secret, which is not stored, and its record.

    Args:
        session: Session of the store.
        actor: The user who creates the token, for the audit log.
        name: The user whose permissions the token has, limited by the scope.
        scope: "read", "write" or "admin".
        label: The purpose of the token.
        expires: Lifetime; None: valid until it is revoked.
    """
    visitors.check_scope(scope)
    if len(label) > _MAX_LABEL_LENGTH:
        raise InvalidArgument(
            f"The label has {len(label)} characters; the limit is {_MAX_LABEL_LENGTH}."
        )
    created, expires_at = utc_now(), None
    if expires is not None:
        expires_at = shift_time(created, parse_duration(expires, argument="expires"))
    secret = TOKEN_PREFIX + new_secret()
    token = Token(uuid.uuid4().hex[:12], name, label, scope, created, expires_at)
    with access_transaction(session) as connection:
        get_user(connection, name)
        access.put_token(connection, token, hash_secret(secret))
        detail = {"user": name, "scope": scope, "expires": expires_at}
        audit_log.add(connection, actor, "make token", token.id, detail)
    return secret, token


def revoke_token(
    session: Session, actor: Actor, identifier: str, *, owner: str | None = None
) -> None:
    """Revoke a token, optionally only if it belongs to ``owner``.

    Raises:
        TokenNotFound: The token does not exist.
    """
    with access_transaction(session) as connection:
        if not access.remove_token(connection, identifier, user=owner):
            raise TokenNotFound(f"Unknown token {identifier!r}.", hint="featurestore token list")
        audit_log.add(connection, actor, "revoke token", identifier)


def set_private(session: Session, actor: Actor, group: str, private: bool) -> list[str]:
    """Restrict reading of a group to users with a role on it, or allow it for all readers.

    Returns what all readers can read from now on, such as "training dataset pay@v1"; the audit log
    has the same list. It is empty if the group becomes private.
    """
    with access_transaction(session) as connection:
        _check_group(connection, group)
        readable_objects = [] if private else find_opened_objects(connection, group)
        access.set_private(connection, group, private)
        detail = {"opens": readable_objects} if readable_objects else None
        audit_log.add(
            connection, actor, "make private" if private else "make public", group, detail
        )
    return readable_objects


def list_opened_objects(session: Session, group: str) -> list[str]:
    """Return what ``set_private(..., private=False)`` would open, without a change."""
    with session.registry.reading() as connection:
        _check_group(connection, group)
        return find_opened_objects(connection, group)


def set_group_role(session: Session, actor: Actor, group: str, name: str, role: str | None) -> None:
    """Set the role of a user on a group ("admin" is the owner); None removes it."""
    if role is not None:
        visitors.check_role(role, of_group=True)
    with access_transaction(session) as connection:
        _check_group(connection, group)
        get_user(connection, name)
        access.put_role(connection, group, name, role)
        detail = {"user": name, "role": role}
        audit_log.add(connection, actor, "set role on group", group, detail)


def get_user(connection: Connection, name: str) -> User:
    """Return a user; raise UserNotFound, with the existing users, if the name is unknown."""
    matching_user = access.find_user(connection, name)
    if matching_user is not None:
        return matching_user
    user_names = [user.name for user in access.list_users(connection)]
    raise UserNotFound(
        f"Unknown user {name!r}. Available: {listing(user_names)}.",
        hint=did_you_mean(name, user_names) or f"featurestore user add {name}",
    )


def _check_another_admin(connection: Connection, name: str) -> None:
    """Reject a change that would leave the store without an admin.

    Raises:
        NotAllowed: The user is the last admin.
    """
    for user in access.list_users(connection):
        if user.role == visitors.ADMIN and user.name != name:
            return
    raise NotAllowed(
        f"{name!r} is the last admin.",
        hint="make another user an admin first: featurestore user role OTHER admin",
    )


def _check_group(connection: Connection, group: str) -> None:
    """Raise FeatureGroupNotFound if a group neither exists nor is private."""
    # A deleted private group stays private, so that creating it again does not publish it.
    if group in access.private_groups_of_store(connection):
        return
    if not featuregroups.versions(connection, group):
        known = featuregroups.names(connection)
        raise FeatureGroupNotFound(
            f"Unknown feature group {group!r}. Available: {listing(known)}.",
            hint=did_you_mean(group, known),
        )
