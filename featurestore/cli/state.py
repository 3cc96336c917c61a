"""The global options of a command: selection of the store, and the log format."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from featurestore.errors import InvalidArgument
from featurestore.model.reader_text import indent_continuation

if TYPE_CHECKING:
    from featurestore.plugins.observers import Work
    from featurestore.store import FeatureStore


class OutputFormat(StrEnum):
    """The format of printed results."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class GlobalOptions:
    """The global options of one command; None is resolved by ``featurestore.config``."""

    location: str | None = None
    engine: str | None = None
    registry: str | None = None
    output: OutputFormat = OutputFormat.TEXT
    wide: bool = False
    log_format: LogFormat | None = None
    token: str | None = None


def settings(context: typer.Context) -> GlobalOptions:
    """Return the global options."""
    return context.find_object(GlobalOptions) or GlobalOptions()


def check_store(options: GlobalOptions) -> None:
    """Raise an error if the location has no store, so that read commands never create one.

    Raises:
        ConfigurationError: The location has no store; the error lists stores near it.
    """
    from featurestore import config
    from featurestore.errors import ConfigurationError, listing
    from featurestore.plugins.remote import is_address
    from featurestore.registry import is_store
    from featurestore.storage import storage_for
    from featurestore.storage.location import location_of

    resolved = config.resolve(
        location=options.location, engine=options.engine, registry=options.registry
    )
    if is_address(resolved.location):
        return  # connecting checks the server
    directory = location_of(resolved.location)
    if is_store(directory) or resolved.registry is not None:
        return
    # The location may have a typing error in its last part, or be a folder above the store.
    folders = dict.fromkeys([os.path.dirname(directory), directory, os.getcwd()])
    nearby_stores = [
        os.path.join(folder, name)
        for folder in folders
        for name in storage_for(folder).list_directory(folder)
        if is_store(os.path.join(folder, name))
    ]
    raise ConfigurationError(
        f"No store at {directory!r}. Stores nearby: {listing(nearby_stores)}.",
        hint=f"--location {nearby_stores[0]}"
        if nearby_stores
        else f"featurestore init {directory}",
    )


def store(context: typer.Context) -> FeatureStore:
    """Open the store that the global options select; it is closed when the command ends."""
    from featurestore.store import connect

    options = settings(context)
    check_store(options)
    connected = connect(
        options.location,
        engine=options.engine,
        registry=options.registry,
        token=options.token,
        # JSON output is for programs.
        progress=False if options.output is OutputFormat.JSON else None,
    )
    return context.with_resource(connected)


def split_version(text: str) -> tuple[str, int | None]:
    """Split ``name@v2`` into name and version; None is the latest version.

    >>> split_version("weather@v2"), split_version("weather")
    (('weather', 2), ('weather', None))
    """
    name, mark, number = text.rpartition("@v")
    # The store rejects other characters in names, and lists the existing names.
    return (name, int(number)) if mark and number.isdecimal() else (text, None)


def require_version(context: typer.Context, text: str) -> tuple[str, int]:
    """Split ``name@v2`` for a command that must not choose the version itself."""
    name, version = split_version(text)
    if version is None:
        # Not ``command_path``, which begins with the name of the running program.
        assert context.parent is not None
        command = f"featurestore {context.parent.info_name} {context.info_name}"
        line = f"{command} {shlex.quote(f'{text}@v1')}"
        raise InvalidArgument(f"{text!r} has no version.", command=line)
    return name, version


class LogFormat(StrEnum):
    """The format of log lines on standard error."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(log_format: LogFormat) -> None:
    """Write log records of level INFO and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonLines())
        # Warnings would otherwise appear as text between the JSON lines.
        logging.captureWarnings(True)
    else:
        handler.setFormatter(Records("%(asctime)s %(levelname)s %(message)s"))
    # Handlers of an earlier configuration would print each record again.
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class Records(logging.Formatter):
    """Formats a log record as text whose further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record; no text of an exception can imitate the next record."""
        return indent_continuation(super().format(record))


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON, with its run and operation."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record."""
        from featurestore.plugins.observers import current

        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        work = current()
        if work is not None:
            entry |= _work_fields(work)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _work_fields(work: Work) -> dict[str, object]:
    """Return the fields of the job run, or of the outermost write with its registry id."""
    fields: dict[str, object] = {"work": f"{work.kind} {work.name}"}
    # A write may consist of several nested operations; its log lines have one run id.
    outermost = work
    while outermost.parent is not None:
        outermost = outermost.parent
    if outermost.kind == "job":
        return fields | {"run_id": f"job-{outermost.run_id}", "job": outermost.name}
    return fields | {"run_id": outermost.run_id}
