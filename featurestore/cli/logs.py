"""What commands log: text for people, or a JSON object a line with the id of the run."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

from featurestore.plugins.observers import Work, current


class LogFormat(StrEnum):
    """How log lines are written, on standard error."""

    TEXT = "text"
    JSON = "json"


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON, with the run and the work that it is of."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        work = current()
        if work is not None:
            told |= _told_of(work)
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def log_to_stderr(form: LogFormat) -> None:
    """Write what is logged to standard error, from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    if form is LogFormat.JSON:
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _told_of(work: Work) -> dict[str, object]:
    """Return the run of a job, or of the write that the work is part of, as the registry names it."""
    told: dict[str, object] = {"work": f"{work.kind} {work.name}"}
    outermost = work
    while outermost.parent is not None:
        outermost = outermost.parent
    if outermost.kind == "job":
        return told | {"run_id": f"job-{outermost.run_id}", "job": outermost.name}
    return told | {"run_id": outermost.run_id}
