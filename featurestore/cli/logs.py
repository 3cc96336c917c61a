"""Logging of commands: text for people, or one JSON object per line with the id of the run."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from featurestore.plugins.observers import Work, current


class LogFormat(StrEnum):
    """The format of log lines on standard error."""

    TEXT = "text"
    JSON = "json"


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON, with the run and the work that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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


def log_to_stderr(form: LogFormat) -> None:
    """Write log records to standard error, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    if form is LogFormat.JSON:
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _work_fields(work: Work) -> dict[str, object]:
    """Return the run of a job, or of the outermost write, with its id in the registry."""
    fields: dict[str, object] = {"work": f"{work.kind} {work.name}"}
    outermost = work
    while outermost.parent is not None:
        outermost = outermost.parent
    if outermost.kind == "job":
        return fields | {"run_id": f"job-{outermost.run_id}", "job": outermost.name}
    return fields | {"run_id": outermost.run_id}
