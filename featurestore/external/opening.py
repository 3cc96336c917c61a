"""Opening a registered source: its connector, with its secret at hand for when it connects."""

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
    """Return the source of a registration; nothing is connected and no secret is read yet.

    The secret is given to the URI and options alone for which somebody registered it on this
    machine.

    Raises:
        InvalidArgument: No such kind is installed, or the URI or an option is not of that kind.
    """
    secret = None
    if spec.secret is not None:
        secret = partial(
            resolve_secret,
            parse_secret(spec.secret),
            location=session.location,
            name=receipt_name(spec),
            uri=receipt_address(spec),
        )
    options = {name: value for name, value in spec.options.items() if name != RENAME}
    decisions = StoredDecisions(session.location, spec.name)
    config = SourceConfig(spec.name, spec.uri, options, secret, decisions)
    return find_source(spec.kind)(config)


def open_snapshot(
    session: Session, spec: SourceSpec, at: int | datetime | None = None
) -> RenamedSnapshot:
    """Connect to a registered source and return a snapshot, its columns named as it says.

    Raises:
        SourceUnavailable: It cannot be reached, or refuses the user.
    """
    snapshot = open_source(session, spec).snapshot(at)
    return RenamedSnapshot(spec.name, snapshot, spec.options.get(RENAME))


def receipt_name(spec: SourceSpec) -> str:
    """Return the name under which this machine remembers where a source's secret may go."""
    return f"source:{spec.name}"


def receipt_address(spec: SourceSpec) -> str:
    """Return where a source's secret goes: its options, too, may say to which server.

    Of the options a hash is enough to compare, and some of them name an account.
    """
    options = json.dumps(dict(sorted(spec.options.items())))
    return json.dumps([spec.uri, hashlib.sha256(options.encode()).hexdigest()])
