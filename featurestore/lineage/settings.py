"""Whether OpenLineage is configured, by its own settings, told without importing it."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

from featurestore.errors import missing_extra
from featurestore.lineage.emitter import Emitter
from featurestore.plugins import observers
from featurestore.storage import files

_log = logging.getLogger("featurestore.lineage")
_FILE = "openlineage.yml"


class _Active:
    """The emitter of this process, and the settings that it was made with."""

    emitter: Emitter | None = None
    settings: tuple[tuple[str, str], ...] = ()
    process: int = 0


def start() -> None:
    """Send OpenLineage events from now on where a transport is configured, and stop where none is.

    The settings are OpenLineage's own: ``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG``,
    ``OPENLINEAGE__TRANSPORT__...``, ``openlineage.yml`` here or in ``~/.openlineage``, and
    ``OPENLINEAGE_DISABLED``.
    """
    found = _settings()
    if (found, os.getpid()) == (_Active.settings, _Active.process):
        return
    stop()
    _Active.settings, _Active.process = found, os.getpid()
    if not found:
        return
    if find_spec("openlineage") is None:
        _log.warning("no lineage is sent: %s", missing_extra("openlineage", "lineage").hint)
        return
    _Active.emitter = Emitter()
    observers.add_observer(_Active.emitter)


def stop(*, seconds: float = 0.0) -> None:
    """Send nothing any more, after what waits for at most so long."""
    if _Active.emitter is not None:
        observers.remove_observer(_Active.emitter)
        _Active.emitter.close(seconds)
    _Active.emitter, _Active.settings = None, ()


def _settings() -> tuple[tuple[str, str], ...]:
    """Return what configures a transport; () where nothing does."""
    given = []
    for name, value in sorted(os.environ.items()):
        if name.startswith("OPENLINEAGE"):
            given.append((name, value))
    known = dict(given)
    if known.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return ()
    for folder in (os.getcwd(), os.path.expanduser("~/.openlineage")):
        place = os.path.join(folder, _FILE)
        if files.exists(place):
            given.append((_FILE, place))
    if not any(name in known for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")):
        transports = [name for name, _ in given if name.startswith("OPENLINEAGE__TRANSPORT")]
        if not transports and not any(name == _FILE for name, _ in given):
            return ()
    return tuple(given)
