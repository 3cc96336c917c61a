"""Open registered sources: configure their connectors and snapshots."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from functools import partial

from featurestore.external.decisions import StoredDecisions
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.renames import RENAME
from featurestore.model.secrets import parse_secret
from featurestore.model.source import SourceSpec
from featurestore.plugins.source import Source, SourceConfig, find_source
from featurestore.session import Session
from featurestore.storage.secrets import resolve_secret


def open_source(session: Session, spec: SourceSpec) -> Source:
    """Return the source of a registration; it does not connect or read its secret yet.

    The secret is only available for the URI and options that were registered on this machine.

    Raises:
        InvalidArgument: The kind is not installed, or the URI or an option is invalid for it.
    """
    secret = None
    if spec.secret is not None:
        secret = partial(
            resolve_secret,
            parse_secret(spec.secret),
            location=session.location,
            name=grant_name(spec),
            uri=grant_address(spec),
        )
    options = {name: value for name, value in spec.options.items() if name != RENAME}
    decisions = StoredDecisions(session.location, spec.name)
    config = SourceConfig(spec.name, spec.uri, options, secret, decisions)
    return find_source(spec.kind)(config)


def open_snapshot(
    session: Session, spec: SourceSpec, version_or_time: int | datetime | None = None
) -> RenamedSnapshot:
    """Connect to a registered source and return a snapshot with renamed columns.

    Raises:
        SourceUnavailable: The source cannot be reached, or refuses the user.
    """
    snapshot = open_source(session, spec).snapshot(version_or_time)
    return RenamedSnapshot(spec.name, snapshot, spec.options.get(RENAME))


def grant_name(spec: SourceSpec) -> str:
    """Return the name of the grant for a source's secret on this machine."""
    return f"source:{spec.name}"


def grant_address(spec: SourceSpec) -> str:
    """Return the address that a source's secret is granted for, including its options.

    Options may select the server. A hash is sufficient to compare them, and some name an account.
    """
    options = json.dumps(dict(sorted(spec.options.items())))
    return json.dumps([spec.uri, hashlib.sha256(options.encode()).hexdigest()])
