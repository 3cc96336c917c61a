"""Who asks: a user behind a cookie or a token, with what both may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy.engine import Connection

from featurestore.errors import NotAllowed, NotSignedIn
from featurestore.recovery import access as kept
from featurestore.registry import access
from featurestore.registry.access import User
from featurestore.registry.audit_log import Actor
from featurestore.registry.cut import Views
from featurestore.server.access import roles
from featurestore.server.access.secrets import digest
from featurestore.session import Session
from featurestore.store import FeatureStore


@dataclass(frozen=True)
class Visitor:
    """Somebody who has come in; ``role`` and ``groups`` are cut to the scope of a token."""

    name: str
    role: str
    groups: Mapping[str, str]
    how: str
    sees_all: bool
    cookie: str | None = field(default=None, repr=False)

    @property
    def actor(self) -> Actor:
        """The visitor as the audit log names one."""
        return Actor(self.name, self.how)

    def may(self, needed: str, group: str | None = None) -> bool:
        """Tell whether the visitor has a role, on the store or on a group."""
        held = self.role
        if group is not None:
            held = roles.stronger(held, self.groups.get(group, roles.NONE))
        return roles.reaches(held, needed)

    def check(self, needed: str, group: str | None = None) -> None:
        """Refuse what needs a role that the visitor does not have.

        Raises:
            NotAllowed: Says which role it takes.
        """
        if not self.may(needed, group):
            where = "the store" if group is None else f"{group!r} or on the store"
            raise NotAllowed(
                f"{self.name} may not do that: it takes the role {needed} on {where}.",
                hint="an admin gives it: featurestore user role, or featurestore access grant",
            )


def visible_to(visitor: Visitor, whole: FeatureStore, views: Views) -> FeatureStore:
    """Return a store as a visitor may read it: nothing else is found in it, counted or joined."""
    reads_store = visitor.role != roles.NONE
    registry = views.registry_for(granted=visitor.groups, reads_store=reads_store)
    return FeatureStore(replace(whole.session, registry=registry))


def by_token(session: Session, text: str) -> Visitor:
    """Return who shows a token.

    Raises:
        NotSignedIn: It is none, was revoked, or its time is over.
    """
    with session.registry.reading() as connection:
        token = access.find_token(connection, digest(text))
        user = None
        if token is not None and not token.expired:
            user = access.find_user(connection, token.user)
        if token is None or user is None:
            raise NotSignedIn(
                "The server does not know this token, or its time is over.",
                hint="featurestore user token NAME makes one",
            )
        return _visitor(connection, user, f"token {token.id}", roles.SCOPES[token.scope])


def by_cookie(session: Session, text: str) -> Visitor | None:
    """Return who is signed in by a cookie; None where nobody is."""
    with session.registry.reading() as connection:
        user = access.find_sign_in(connection, digest(text))
        if user is None:
            return None
        return _visitor(connection, user, "browser", roles.ADMIN, cookie=text)


def check_somebody(session: Session) -> None:
    """Refuse a server that nobody could come into.

    Raises:
        NotAllowed: There is no user.
    """
    with session.registry.transaction() as connection:
        kept.restore(connection, session.location)
        if not access.every_user(connection):
            raise NotAllowed(
                "Nobody could sign in: there is no user yet.",
                hint=f"featurestore --location {session.location} user add NAME --role admin",
            )


def _visitor(
    connection: Connection, user: User, how: str, most: str, *, cookie: str | None = None
) -> Visitor:
    groups = {}
    for group, role in access.roles_of(connection, user.name).items():
        groups[group] = roles.weaker(role, most)
    role = roles.weaker(user.role, most)
    sees_all = user.role == roles.ADMIN
    return Visitor(user.name, role, groups, how, sees_all, cookie)
