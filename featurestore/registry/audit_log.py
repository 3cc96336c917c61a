"""The audit log: time, actor, action and subject of each change. Entries are immutable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from featurestore.model.runtime import user_name
from featurestore.model.times import from_micros, to_micros, utc_now
from featurestore.registry.rows import translate_parse_errors
from featurestore.registry.tables import audit_log, contains_text

CREATE = "create"


@dataclass(frozen=True)
class Actor:
    """The user who made a change; ``how`` is "command line", "browser" or "token <id>"."""

    name: str
    how: str


def process_actor(how: str) -> Actor:
    """Return the actor for this process: the operating system account that runs it."""
    return Actor(user_name(), how)


@dataclass(frozen=True)
class AuditEntry:
    """An entry in the audit log."""

    at: datetime
    who: str
    how: str
    action: str
    subject: str
    detail: dict[str, Any]


def add(
    connection: Connection,
    actor: Actor,
    action: str,
    subject: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry in the same transaction as the change."""
    text = json.dumps(dict(detail or {}), ensure_ascii=False, default=str)
    connection.execute(
        audit_log.insert().values(
            at=to_micros(utc_now()),
            who=actor.name,
            how=actor.how,
            action=action,
            subject=subject,
            detail=text,
        )
    )


def entries(
    connection: Connection, *, who: str = "", text: str = "", limit: int | None, offset: int = 0
) -> list[AuditEntry]:
    """List entries, newest first, optionally by user or by a string in action or subject."""
    query = sa.select(audit_log).order_by(audit_log.c.id.desc())
    if who:
        query = query.where(audit_log.c.who == who)
    if text:
        action = contains_text(connection, audit_log.c.action, text)
        query = query.where(action | contains_text(connection, audit_log.c.subject, text))
    return [_to_entry(row) for row in connection.execute(query.limit(limit).offset(offset))]


def entries_of_action(connection: Connection, action: str) -> list[AuditEntry]:
    """List all entries of an action, oldest first."""
    query = sa.select(audit_log).where(audit_log.c.action == action).order_by(audit_log.c.id)
    return [_to_entry(row) for row in connection.execute(query)]


def commits(connection: Connection, group: str, version: int) -> list[tuple[int, AuditEntry]]:
    """Return the writes to a group version as (Delta version, entry), oldest first."""
    subject = f"{group}@v{version}"
    # The creation of a group has its name as subject, and the version in the detail.
    query = sa.select(audit_log).where(audit_log.c.subject.in_([group, subject]))
    commit_entries = []
    for row in connection.execute(query.order_by(audit_log.c.id)):
        entry = _to_entry(row)
        delta_version = entry.detail.get("delta_version")
        is_of_version = entry.subject == subject or entry.detail.get("version") == version
        if is_of_version and isinstance(delta_version, int):
            commit_entries.append((delta_version, entry))
    return commit_entries


def _to_entry(row: sa.Row[Any]) -> AuditEntry:
    with translate_parse_errors("the audit log"):
        detail = dict(json.loads(row.detail))
    return AuditEntry(from_micros(row.at), row.who, row.how, row.action, row.subject, detail)
