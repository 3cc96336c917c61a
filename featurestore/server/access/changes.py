"""Changes of users, tokens, roles and private groups: each in the audit log and in access.json."""

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
from featurestore.model.durations import parse_duration
from featurestore.model.times import shifted, utc_now
from featurestore.recovery import access as kept
from featurestore.registry import access, audit_log, featuregroups
from featurestore.registry.access import Token, User
from featurestore.registry.audit_log import Actor
from featurestore.registry.locking import lock
from featurestore.server.access import roles
from featurestore.server.access.secrets import TOKEN_PREFIX, digest, hash_password, new_secret
from featurestore.session import Session

COMMAND_LINE = "command line"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.@+-]{0,126}")
_LONGEST_LABEL = 200


@contextmanager
def changing(session: Session) -> Iterator[Connection]:
    """Yield a connection for a change; what the registry then says is written beside it.

    One change at a time, or the file would lack what another one made meanwhile.
    """
    with session.registry.transaction() as connection:
        lock(connection, "access")
        kept.restore(connection, session.location)
        yield connection
        kept.write(connection, session.location)


def check_user_name(name: str) -> str:
    """Return the name of a user if it is one; mail addresses are.

    >>> check_user_name("ann@example.org")
    'ann@example.org'
    """
    if _NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{name!r} is no name of a user.",
        hint="lower-case letters, digits and . _ @ + -, at most 127 of them",
    )


def add_user(
    session: Session,
    actor: Actor,
    name: str,
    *,
    role: str = roles.READER,
    password: str | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> User:
    """Add a user; without a password, one who comes by a provider or a token.

    Raises:
        UserExists: There is one of this name.
    """
    check_user_name(name)
    roles.check_role(role)
    hashed = None if password is None else hash_password(password)
    with changing(session) as connection:
        if access.find_user(connection, name) is not None:
            raise UserExists(
                f"There is a user {name!r}.", hint=f"featurestore user role {name} {role}"
            )
        access.put_user(
            connection, name, role=role, password=hashed, issuer=issuer, subject=subject
        )
        audit_log.add(connection, actor, "add user", name, {"role": role})
        return get_user(connection, name)


def remove_user(session: Session, actor: Actor, name: str) -> None:
    """Remove a user, with tokens, roles and sign-ins.

    Raises:
        UserNotFound: There is none.
        NotAllowed: It is the last admin.
    """
    with changing(session) as connection:
        user = get_user(connection, name)
        if user.role == roles.ADMIN and len(access.every_user(connection)) > 1:
            _check_another_admin(connection, name)
        access.remove_user(connection, name)
        audit_log.add(connection, actor, "remove user", name)


def set_role(session: Session, actor: Actor, name: str, role: str) -> None:
    """Give a user another role on the store."""
    roles.check_role(role)
    with changing(session) as connection:
        user = get_user(connection, name)
        if user.role == roles.ADMIN and role != roles.ADMIN:
            _check_another_admin(connection, name)
        access.change_user(connection, name, role=role)
        audit_log.add(connection, actor, "set role", name, {"role": role, "before": user.role})


def set_password(session: Session, actor: Actor, name: str, password: str) -> None:
    """Give a user another password; every browser is signed out."""
    hashed = hash_password(password)
    with changing(session) as connection:
        get_user(connection, name)
        access.change_user(connection, name, password=hashed)
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
    """Return a new token, which is shown this once, and what is kept of it.

    Args:
        session: The store.
        actor: Who makes it.
        name: The user whose rights it has, cut to the scope.
        scope: "read", "write" or "admin".
        label: What it is for.
        expires: How long it is good for; None: until it is revoked.
    """
    roles.check_scope(scope)
    if len(label) > _LONGEST_LABEL:
        raise InvalidArgument(f"A label has at most {_LONGEST_LABEL} characters.")
    created, until = utc_now(), None
    if expires is not None:
        until = shifted(created, parse_duration(expires, argument="expires"))
    text = TOKEN_PREFIX + new_secret()
    token = Token(uuid.uuid4().hex[:12], name, label, scope, created, until)
    with changing(session) as connection:
        get_user(connection, name)
        access.put_token(connection, token, digest(text))
        told = {"user": name, "scope": scope, "expires": until}
        audit_log.add(connection, actor, "make token", token.id, told)
    return text, token


def revoke_token(session: Session, actor: Actor, identifier: str, *, of: str | None = None) -> None:
    """Make a token worthless; ``of``: only where it is of this user.

    Raises:
        TokenNotFound: There is none of this id.
    """
    with changing(session) as connection:
        if not access.remove_token(connection, identifier, user=of):
            raise TokenNotFound(
                f"There is no token {identifier!r}.", hint="featurestore token list"
            )
        audit_log.add(connection, actor, "revoke token", identifier)


def set_private(session: Session, actor: Actor, group: str, private: bool) -> None:
    """Let only those read a group who have a role on it, or everybody who reads the store."""
    with changing(session) as connection:
        _check_group(connection, group)
        access.set_private(connection, group, private)
        action = "make private" if private else "make public"
        audit_log.add(connection, actor, action, group)


def set_group_role(session: Session, actor: Actor, group: str, name: str, role: str | None) -> None:
    """Give a user a role on a group ("admin": the owner); None takes it away."""
    if role is not None:
        roles.check_role(role, of_group=True)
    with changing(session) as connection:
        _check_group(connection, group)
        get_user(connection, name)
        access.put_role(connection, group, name, role)
        told = {"user": name, "role": role}
        audit_log.add(connection, actor, "set role on group", group, told)


def get_user(connection: Connection, name: str) -> User:
    """Return a user; UserNotFound lists those that there are."""
    found = access.find_user(connection, name)
    if found is not None:
        return found
    known = [user.name for user in access.every_user(connection)]
    raise UserNotFound(
        f"There is no user {name!r}; there are {listing(known)}.",
        hint=did_you_mean(name, known) or f"featurestore user add {name}",
    )


def _check_another_admin(connection: Connection, name: str) -> None:
    """Refuse to leave a store in which nobody may give rights any more.

    Raises:
        NotAllowed: The user is the last admin.
    """
    for user in access.every_user(connection):
        if user.role == roles.ADMIN and user.name != name:
            return
    raise NotAllowed(
        f"{name!r} is the last admin.", hint="featurestore user role OTHER admin, then again"
    )


def _check_group(connection: Connection, group: str) -> None:
    # A private group that was deleted stays private: who makes it anew must not publish it.
    if group in access.private(connection):
        return
    if not featuregroups.versions(connection, group):
        known = featuregroups.names(connection)
        raise FeatureGroupNotFound(
            f"There is no feature group {group!r}; there are {listing(known)}.",
            hint=did_you_mean(group, known),
        )
