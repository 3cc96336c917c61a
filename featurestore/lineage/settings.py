"""Configuration of OpenLineage by its own settings, detected without importing it."""

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
    """The emitter of this process and its settings."""

    emitter: Emitter | None = None
    settings: tuple[tuple[str, str], ...] = ()
    process: int = 0


def start() -> None:
    """Start sending OpenLineage events if a transport is configured, else stop.

    The settings are those of OpenLineage: ``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG``,
    ``OPENLINEAGE__TRANSPORT__...``, ``openlineage.yml`` in the working directory or in
    ``~/.openlineage``, and ``OPENLINEAGE_DISABLED``.
    """
    settings = _settings()
    if (settings, os.getpid()) == (_Active.settings, _Active.process):
        return
    stop()
    _Active.settings, _Active.process = settings, os.getpid()
    if not settings:
        return
    if find_spec("openlineage") is None:
        _log.warning("no lineage is sent: %s", missing_extra("openlineage", "lineage").hint)
        return
    _Active.emitter = Emitter()
    observers.add_observer(_Active.emitter)


def stop(*, seconds: float = 0.0) -> None:
    """Stop sending events, after waiting at most ``seconds`` for queued ones."""
    if _Active.emitter is not None:
        observers.remove_observer(_Active.emitter)
        _Active.emitter.close(seconds)
    _Active.emitter, _Active.settings = None, ()


def _settings() -> tuple[tuple[str, str], ...]:
    """Return the settings of a transport, () without one."""
    entries = [each for each in sorted(os.environ.items()) if each[0].startswith("OPENLINEAGE")]
    variables = dict(entries)
    if variables.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return ()
    for folder in (os.getcwd(), os.path.expanduser("~/.openlineage")):
        path = os.path.join(folder, _FILE)
        if files.exists(path):
            entries.append((_FILE, path))
    if not any(name in variables for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")):
        transports = [name for name, _ in entries if name.startswith("OPENLINEAGE__TRANSPORT")]
        if not transports and not any(name == _FILE for name, _ in entries):
            return ()
    return tuple(entries)
