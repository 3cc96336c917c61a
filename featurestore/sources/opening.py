"""Opening a registered source: its connector, with its secret at hand for when it connects."""

from __future__ import annotations

from functools import partial

from featurestore.model.secrets import parse_secret
from featurestore.model.source import SourceSpec
from featurestore.plugins.source import Source, SourceConfig, find_source
from featurestore.storage.secrets import resolve_secret


def open_source(spec: SourceSpec) -> Source:
    """Return the source of a registration; nothing is connected and no secret is read yet.

    Raises:
        InvalidArgument: No such kind is installed, or the URI or an option is not of that kind.
    """
    secret = None
    if spec.secret is not None:
        secret = partial(resolve_secret, parse_secret(spec.secret))
    config = SourceConfig(spec.name, spec.uri, dict(spec.options), secret)
    return find_source(spec.kind)(config)
