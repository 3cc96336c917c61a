"""Users, tokens, sign-ins and roles in the registry; passwords and tokens are stored as hashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry.rows import put_row, to_column, to_time
from featurestore.registry.tables import (
    failed_sign_ins,
    group_roles,
    private_groups,
    sign_ins,
    tokens,
    users,
)


@dataclass(frozen=True)
class User:
    """A user account; ``role`` applies to the entire store."""

    name: str
    role: str
    password: str | None = field(repr=False)
    issuer: str | None
    subject: str | None
    created: datetime


@dataclass(frozen=True)
class Token:
    """An access token for a program; its string is displayed only at creation."""

    id: str
    user: str
    label: str
    scope: str
    created: datetime
    expires: datetime | None

    @property
    def expired(self) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and self.expires <= utc_now()


# -- users ----------------------------------------------------------------------------------------


def put_user(
    connection: Connection,
    name: str,
    *,
    role: str,
    password: str | None = None,
    issuer: str | None = None,
    subject: str | None = None,
) -> None:
    """Add a user; ``password`` is a password hash."""
    identity = {"password": password, "issuer": issuer, "subject": subject}
    created = to_micros(utc_now())
    connection.execute(users.insert().values(name=name, role=role, created=created, **identity))


def change_user(connection: Connection, name: str, **changed: str | None) -> bool:
    """Update columns of a user; return whether the user exists."""
    updated = connection.execute(users.update().where(users.c.name == name).values(**changed))
    return bool(updated.rowcount)


def remove_user(connection: Connection, name: str) -> bool:
    """Remove a user with all tokens, sign-ins and roles; return whether the user existed."""
    # Foreign keys delete the tokens, sign-ins and roles of the user.
    return bool(connection.execute(users.delete().where(users.c.name == name)).rowcount)


def find_user(connection: Connection, name: str) -> User | None:
    """Return a user by name, None if the user does not exist."""
    row = connection.execute(sa.select(users).where(users.c.name == name)).first()
    return None if row is None else _to_user(row)


def find_identity(connection: Connection, issuer: str, subject: str) -> User | None:
    """Return the user with an identity from an identity provider."""
    is_identity = sa.and_(users.c.issuer == issuer, users.c.subject == subject)
    row = connection.execute(sa.select(users).where(is_identity)).first()
    return None if row is None else _to_user(row)


def list_users(connection: Connection) -> list[User]:
    """List all users, ordered by name."""
    return [_to_user(row) for row in connection.execute(sa.select(users).order_by(users.c.name))]


def _to_user(row: Any) -> User:
    created = from_micros(row.created)
    return User(row.name, row.role, row.password, row.issuer, row.subject, created)


# -- tokens ---------------------------------------------------------------------------------------


def put_token(connection: Connection, token: Token, hashed: str) -> None:
    """Add a token with its hash."""
    connection.execute(
        tokens.insert().values(
            id=token.id,
            username=token.user,
            label=token.label,
            hash=hashed,
            scope=token.scope,
            created=to_micros(token.created),
            expires=to_column(token.expires),
        )
    )


def find_token(connection: Connection, hashed: str) -> Token | None:
    """Return the token with a hash, even if it has expired."""
    row = connection.execute(sa.select(tokens).where(tokens.c.hash == hashed)).first()
    return None if row is None else _to_token(row)


def list_tokens(connection: Connection, user: str | None = None) -> list[Token]:
    """List the tokens of a user or of all users, ordered by user and age."""
    query = sa.select(tokens).order_by(tokens.c.username, tokens.c.created, tokens.c.id)
    if user is not None:
        query = query.where(tokens.c.username == user)
    return [_to_token(row) for row in connection.execute(query)]


def remove_token(connection: Connection, identifier: str, *, user: str | None = None) -> bool:
    """Remove a token, optionally only if it belongs to ``user``; return whether it existed."""
    removal = tokens.delete().where(tokens.c.id == identifier)
    if user is not None:
        removal = removal.where(tokens.c.username == user)
    return bool(connection.execute(removal).rowcount)


def _to_token(row: Any) -> Token:
    created, expires = from_micros(row.created), to_time(row.expires)
    return Token(row.id, row.username, row.label, row.scope, created, expires)


# -- sign-ins -------------------------------------------------------------------------------------


def put_sign_in(connection: Connection, hashed: str, user: str, expires: datetime) -> None:
    """Record that a user signed in with a browser, and remove expired sign-ins."""
    # No other task removes expired sign-ins.
    connection.execute(sign_ins.delete().where(sign_ins.c.expires <= to_micros(utc_now())))
    values = {"hash": hashed, "username": user, "expires": to_micros(expires)}
    connection.execute(sign_ins.insert().values(**values))


def find_sign_in(connection: Connection, hashed: str) -> User | None:
    """Return the user who is signed in with a cookie hash; None if the sign-in has expired."""
    query = (
        sa.select(users)
        .join(sign_ins, sign_ins.c.username == users.c.name)
        .where(sign_ins.c.hash == hashed, sign_ins.c.expires > to_micros(utc_now()))
    )
    row = connection.execute(query).first()
    return None if row is None else _to_user(row)


def remove_sign_in(connection: Connection, hashed: str) -> None:
    """Remove the sign-in of a browser."""
    connection.execute(sign_ins.delete().where(sign_ins.c.hash == hashed))


def remove_sign_ins(connection: Connection, user: str) -> None:
    """Remove all sign-ins of a user."""
    connection.execute(sign_ins.delete().where(sign_ins.c.username == user))


def put_attempt(connection: Connection, subject: str) -> int:
    """Record a sign-in attempt and return its id; it counts as failed until it is removed."""
    values = {"who": subject, "at": to_micros(utc_now())}
    inserted = failed_sign_ins.insert().values(**values).returning(failed_sign_ins.c.id)
    return int(connection.execute(inserted).scalar_one())


def remove_attempt(connection: Connection, identifier: int) -> None:
    """Remove an attempt, because it succeeded."""
    connection.execute(failed_sign_ins.delete().where(failed_sign_ins.c.id == identifier))


def remove_attempts_outside(connection: Connection, since: datetime, until: datetime) -> None:
    """Remove old attempts, and attempts recorded before the clock was set back."""
    attempted = failed_sign_ins.c.at
    outside = sa.or_(attempted < to_micros(since), attempted > to_micros(until))
    connection.execute(failed_sign_ins.delete().where(outside))


def count_attempts(connection: Connection, pattern: str) -> dict[str, tuple[int, datetime]]:
    """Return the number of attempts and the last time for each ``who`` that matches a pattern."""
    attempted = failed_sign_ins.c.at
    query = (
        sa.select(
            failed_sign_ins.c.who,
            sa.func.count().label("number"),
            sa.func.max(attempted).label("at"),
        )
        # The keys are hexadecimal hashes, so they contain no wildcards.
        .where(failed_sign_ins.c.who.like(pattern))
        .group_by(failed_sign_ins.c.who)
    )
    return {
        str(row.who): (int(row.number), from_micros(row.at)) for row in connection.execute(query)
    }


def remove_attempts(connection: Connection, subject: str) -> None:
    """Remove the failed sign-in attempts of a user from one address."""
    connection.execute(failed_sign_ins.delete().where(failed_sign_ins.c.who == subject))


# -- groups ---------------------------------------------------------------------------------------


def put_role(connection: Connection, group: str, user: str, role: str | None) -> None:
    """Set the role of a user on a group; None removes it."""
    key = {"featuregroup": group, "username": user}
    if role is not None:
        put_row(connection, group_roles, key, {"role": role})
        return
    is_role_of_user = sa.and_(group_roles.c.featuregroup == group, group_roles.c.username == user)
    connection.execute(group_roles.delete().where(is_role_of_user))


def roles_of(connection: Connection, user: str) -> dict[str, str]:
    """Return the roles of a user by group."""
    query = sa.select(group_roles).where(group_roles.c.username == user)
    return {
        str(row.featuregroup): str(row.role)
        for row in connection.execute(query.order_by(group_roles.c.featuregroup))
    }


def roles_on(connection: Connection, group: str) -> dict[str, str]:
    """Return the roles on a group by user."""
    query = sa.select(group_roles).where(group_roles.c.featuregroup == group)
    return {
        str(row.username): str(row.role)
        for row in connection.execute(query.order_by(group_roles.c.username))
    }


def all_group_roles(connection: Connection) -> dict[str, dict[str, str]]:
    """Return the roles on all groups: role by user, by group."""
    query = sa.select(group_roles).order_by(group_roles.c.featuregroup, group_roles.c.username)
    roles: dict[str, dict[str, str]] = {}
    for row in connection.execute(query):
        roles.setdefault(str(row.featuregroup), {})[str(row.username)] = str(row.role)
    return roles


def set_private(connection: Connection, group: str, is_private: bool) -> None:
    """Make a group private, so that only users with a role on it can read it, or public."""
    if is_private:
        values = {"created": to_micros(utc_now())}
        put_row(connection, private_groups, {"featuregroup": group}, values)
        return
    connection.execute(private_groups.delete().where(private_groups.c.featuregroup == group))


def private_groups_of_store(connection: Connection) -> list[str]:
    """Return the sorted names of all private groups."""
    query = sa.select(private_groups.c.featuregroup).order_by(private_groups.c.featuregroup)
    return [str(name) for name in connection.execute(query).scalars()]
