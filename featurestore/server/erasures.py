"""Erasure of entities through REST, for admins."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends
from pydantic import BaseModel, Field

from featurestore.errors import NotAllowed
from featurestore.server.access.visitors import ADMIN, Visitor
from featurestore.server.guard import CurrentVisitor, FullStore, log_change
from featurestore.server.rest import REFUSALS, Record
from featurestore.server.routes import Router

api = Router(prefix="/erasures", tags=["writes"], responses=REFUSALS)
_MAX_ENTITIES, _MAX_KEYS = 1000, 20
KeyText = Annotated[str, Field(min_length=1, max_length=10_000)]


def require_admin(visitor: CurrentVisitor) -> Visitor:
    """Return the visitor if an admin is signed in.

    Raises:
        NotAllowed: The visitor is not an admin, or the server has no sign-in.
    """
    if visitor is None:
        raise NotAllowed("This server has no sign-in.", hint="featurestore serve --auth")
    visitor.check(ADMIN)
    return visitor


Admin = Annotated[Visitor, Depends(require_admin)]


class Erasure(BaseModel, extra="forbid"):
    """Arguments of ``erase``; key values are strings, which equal numbers and times as text."""

    subject: list[Annotated[dict[str, KeyText], Field(min_length=1, max_length=_MAX_KEYS)]] = Field(
        min_length=1, max_length=_MAX_ENTITIES
    )
    columns: dict[str, str] = Field(default_factory=dict, max_length=1000)
    datasets: Literal["export", "keep"] = "export"
    dry_run: bool = True


class Verification(BaseModel, extra="forbid"):
    """The certificate of an erasure."""

    certificate: Record


@api.post("")
def erase(erasure: Erasure, admin: Admin, full_store: FullStore) -> Record:
    """Report all places with data of entities, or erase them; returns the report."""
    from featurestore.erasure import erase as erase_entities

    arguments = erasure.model_dump()
    report = erase_entities(
        full_store.session, arguments.pop("subject"), actor=admin.actor, **arguments
    )
    if report.dry_run:
        # An erasure is in the audit log with its certificate. Neither entry has a value.
        detail = {"keys": list(report.keys), "findings": len(report.findings)}
        log_change(full_store, admin, "report erasure", ", ".join(report.keys), detail)
    return report.to_json()


@api.post("/verify")
def verify(verification: Verification, admin: Admin, full_store: FullStore) -> Record:
    """Check a certificate, and search the store for the erased entities."""
    return full_store.verify_erasure(verification.certificate).to_json()
