"""The record of an experiment run: ``run.json`` and ``metrics.jsonl``, as dataclasses.

Both have checksums, which detect changed bytes: ``run.json`` has one checksum for the whole object,
``metrics.jsonl`` has one on each line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from featurestore.errors import RunNotFound
from featurestore.model import json_object
from featurestore.model.json_object import (
    CHECKSUM,
    LINE_CHECKSUM_LENGTH,
    JsonMapping,
    JsonObject,
    MalformedJson,
)
from featurestore.model.names import check_name
from featurestore.model.records import Checked, Record, TimeText, Version
from featurestore.model.times import utc_now

FORMAT = 2
RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"

State = Literal["running", "finished", "failed", "stopped", "interrupted"]
_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,63}")
# The end of a complete line, which a line truncated by a killed process does not contain.
_LINE_END = re.compile(rf'"{CHECKSUM}": "[0-9a-f]{{{LINE_CHECKSUM_LENGTH}}}"}}')


def check_run_id(run_id: object) -> str:
    """Return a valid run ID.

    >>> check_run_id("20130101-063000-1f2e3d")
    '20130101-063000-1f2e3d'
    """
    if isinstance(run_id, str) and _ID.fullmatch(run_id):
        return run_id
    raise RunNotFound(
        f"{run_id!r} is not a valid run ID.", hint="experiments.get_runs() lists the runs"
    )


@dataclass(frozen=True)
class RunDataset(Record):
    """The training dataset of a run, identified by its content hash."""

    name: Annotated[str, Checked(partial(check_name, noun="training dataset"))]
    version: Version
    manifest: str
    path: str


@dataclass(frozen=True)
class RunRecord(Record, format=FORMAT, oldest_format=FORMAT, subject="The run {id!r}"):
    """The record of one run.

    ``kind`` is the name of the call that started the run; ``parent`` and ``number`` identify a
    trial in its study. ``settings`` are the launcher settings (workers, retries, seed ...),
    ``code`` and ``environment`` identify the program, ``attempts`` are the starts and ends,
    ``readers`` are the final states of the readers. ``files`` are the SHA-256 checksums of the
    metrics file and the artifacts of a run that has ended, by path relative to the run directory.
    """

    id: Annotated[str, Checked(check_run_id)]
    name: Annotated[str, Checked(partial(check_name, noun="experiment"))]
    kind: str
    state: State
    created: TimeText
    params: JsonMapping = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    dataset: RunDataset | None = None
    parent: Annotated[str | None, Checked(check_run_id)] = None
    number: int | None = None
    seed: int = 0
    settings: JsonMapping = field(default_factory=dict)
    code: JsonMapping = field(default_factory=dict)
    environment: JsonMapping = field(default_factory=dict)
    attempts: tuple[JsonMapping, ...] = ()
    readers: tuple[JsonMapping, ...] = ()
    started: TimeText | None = None
    ended: TimeText | None = None
    reason: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """The duration of the run in seconds, from the first start to the end."""
        if self.started is None or self.ended is None:
            return None
        lasted = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        return lasted.total_seconds()

    def running_again(self) -> RunRecord:
        """Return the record for another attempt.

        The checksums in ``files`` belong to the previous end, and the files are about to change.
        """
        return replace(self, state="running", ended=None, reason=None, files={})

    def end(self, state: State, *, reason: str | None = None, **results: Any) -> RunRecord:
        """Return the record of a run that ends now; ``results`` are further fields."""
        ended = utc_now().isoformat()
        return replace(self, state=state, ended=ended, reason=reason, **results)

    def with_attempt(self, attempt: JsonMapping) -> RunRecord:
        """Return the record with a further attempt."""
        return replace(self, attempts=(*self.attempts, attempt))

    def to_bytes(self) -> bytes:
        """Return the contents of ``run.json``, with a checksum."""
        return json_object.seal(self.to_json())

    @classmethod
    def from_bytes(cls, content: bytes) -> RunRecord:
        """Parse the contents of ``run.json``.

        Raises:
            MalformedJson: The contents differ from what was written.
        """
        with json_object.translate_parse_errors("run.json"):
            data = json_object.unseal(content)
        return cls.from_json(data)


@dataclass(frozen=True)
class MetricValue:
    """A metric value reported by a run for one step; ``time`` is in seconds since 1970."""

    name: str
    step: int
    value: float
    time: float | None = field(default=None, compare=False, repr=False)


def format_metrics_line(
    step: int, metrics: Mapping[str, float], *, time: float, begins: bool
) -> str:
    """Return the ``metrics.jsonl`` line with the metrics of a step.

    Args:
        step: The number of the step.
        metrics: The values by name.
        time: Seconds since 1970.
        begins: Whether this is the first line of an attempt, so that the line before it may be
            truncated.
    """
    line = json_object.seal_line(
        {"step": step, "time": time, "metrics": dict(metrics), "begins": begins}
    )
    # The newline ends a line that a killed attempt may have left incomplete.
    return f"\n{line}\n" if begins else f"{line}\n"


def parse_metrics(text: str) -> list[MetricValue]:
    r"""Parse ``metrics.jsonl``; return the last value of each metric and step, ordered by step.

    A killed worker may leave a truncated line at the end of the file, or before the first line of
    the next attempt. Truncated lines are ignored.

    Raises:
        MalformedJson: Names a line that differs from what was written.

    >>> line = format_metrics_line(1, {"loss": 0.5}, time=1.7e9, begins=True)
    >>> parse_metrics(line + '{"step": 2, "met')
    [MetricValue(name='loss', step=1, value=0.5)]
    """
    values: dict[tuple[str, int], MetricValue] = {}
    damaged: int | None = None
    # ``splitlines`` would also split at U+2028 and other characters within strings.
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            if damaged is not None:
                raise MalformedJson(f"line {damaged} is damaged")
            continue
        data = _parse_line(line, number)
        # An incomplete line is valid only at the end of the file, or before the first line of
        # another attempt; ``damaged`` is its number until the next line decides.
        if data is None:
            # A line with its end was not truncated, so it was changed.
            if _LINE_END.search(line):
                raise MalformedJson(f"line {number} is damaged")
            damaged = damaged or number
            continue
        if damaged is not None and data.data.get("begins") is False:
            raise MalformedJson(f"line {damaged} is damaged")
        damaged = None
        step = data.number("step")
        time = data.optional_real("time")
        for name, value in data.object("metrics").read_values(JsonObject.real).items():
            # A resumed attempt may report steps again: the later values replace the earlier ones.
            values[name, step] = MetricValue(name, step, value, time)
    return sorted(values.values(), key=lambda metric: (metric.step, metric.name))


def _parse_line(line: str, number: int) -> JsonObject | None:
    """Return the JSON object of a line, or None for a truncated or damaged line."""
    try:
        return JsonObject.from_value(json_object.unseal_line(line), f"line {number}")
    except MalformedJson:
        return None
