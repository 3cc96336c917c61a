"""The record of an experiment's run: what ``run.json`` says, as data that nothing ever executes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from featurestore.errors import RunNotFound
from featurestore.model.json_object import JsonObject, MalformedJson, parsing
from featurestore.model.names import check_name

FORMAT = 1
RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"

State = Literal["running", "finished", "failed", "stopped", "interrupted"]
_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,63}")


@dataclass(frozen=True)
class RunDataset:
    """The training dataset that a run reads: its content hash says whether it is the same still."""

    name: str
    version: int
    manifest: str
    path: str

    @classmethod
    def from_json(cls, data: JsonObject) -> RunDataset:
        """Return what ``vars`` of one gives."""
        return cls(
            check_name(data.text("name"), noun="training dataset"),
            data.number("version", least=1),
            data.text("manifest"),
            data.text("path"),
        )


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run.

    ``kind`` is the call that made it; ``parent`` and ``number`` place a trial in its study.
    ``settings`` are the launcher's (workers, retries, seed ...), ``code`` and ``environment`` say
    what ran, ``attempts`` how each start ended, ``readers`` the state of each reader at the end.
    """

    id: str
    name: str
    kind: str
    state: State
    created: str
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    dataset: RunDataset | None = None
    parent: str | None = None
    number: int | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[Mapping[str, Any], ...] = ()
    readers: tuple[Mapping[str, Any], ...] = ()
    started: str | None = None
    ended: str | None = None
    reason: str | None = None

    @property
    def seconds(self) -> float | None:
        """How long it ran, from the first start to the end."""
        if self.started is None or self.ended is None:
            return None
        lasted = datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        return lasted.total_seconds()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``run.json`` holds."""
        told = {"format": FORMAT, **vars(self)}
        told["dataset"] = None if self.dataset is None else vars(self.dataset)
        told["attempts"], told["readers"] = list(self.attempts), list(self.readers)
        return told

    @classmethod
    def from_json(cls, value: object) -> RunRecord:
        """Return the record of a JSON value.

        Raises:
            MalformedJson: Names what is missing or of another type.
        """
        with parsing("run.json"):
            data = JsonObject.of(value)
            if data.number("format") != FORMAT:
                raise MalformedJson(f"format {data.get('format')} is of a newer release")
            state = data.text("state")
            if state not in get_args(State):
                raise data.wrong("state", f"one of {', '.join(get_args(State))}")
            times = {name: data.optional_text(name) for name in ("created", "started", "ended")}
            for time in filter(None, times.values()):
                datetime.fromisoformat(time)
            return cls(
                id=check_run_id(data.text("id")),
                name=check_name(data.text("name"), noun="experiment"),
                kind=data.text("kind"),
                state=state,  # type: ignore[arg-type]
                created=data.text("created"),
                params=dict(data.object("params").data),
                metrics=data.object("metrics").each(JsonObject.real),
                dataset=_dataset(data),
                parent=_parent(data),
                number=None if data.get("number") is None else data.number("number"),
                seed=data.number("seed"),
                settings=dict(data.object("settings").data),
                code=dict(data.object("code").data),
                environment=dict(data.object("environment").data),
                attempts=_objects(data, "attempts"),
                readers=_objects(data, "readers"),
                started=times["started"],
                ended=times["ended"],
                reason=data.optional_text("reason"),
            )


def _dataset(data: JsonObject) -> RunDataset | None:
    if data.get("dataset") is None:
        return None
    return RunDataset.from_json(data.object("dataset"))


def _objects(data: JsonObject, name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(each.data for each in data.objects(name))


def _parent(data: JsonObject) -> str | None:
    parent = data.optional_text("parent")
    return None if parent is None else check_run_id(parent)


def check_run_id(run_id: object) -> str:
    """Return the id of a run, if it is one.

    >>> check_run_id("20130101-063000-1f2e3d")
    '20130101-063000-1f2e3d'
    """
    if isinstance(run_id, str) and _ID.fullmatch(run_id):
        return run_id
    raise RunNotFound(
        f"{run_id!r} is not the id of a run.", hint="experiments.get_runs() lists those there are"
    )


@dataclass(frozen=True)
class MetricValue:
    """A value that a run reported of a metric at a step; ``time`` in seconds since 1970."""

    name: str
    step: int
    value: float
    time: float | None = field(default=None, compare=False, repr=False)


def parse_metrics(text: str) -> list[MetricValue]:
    r"""Return the values of ``metrics.jsonl``, the last one of each metric and step, by step.

    A last line that was cut off by a kill counts for nothing.

    >>> parse_metrics('{"step": 1, "metrics": {"loss": 0.5}}\n{"step": 2, "met')
    [MetricValue(name='loss', step=1, value=0.5)]
    """
    found: dict[tuple[str, int], MetricValue] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            data = JsonObject.of(json.loads(line), f"line {number}")
        except ValueError:
            # Two workers' lines never mix, but a killed one may leave half a line before the next.
            continue
        step = data.number("step")
        time = data.optional_real("time")
        for name, value in data.object("metrics").each(JsonObject.real).items():
            found[name, step] = MetricValue(name, step, value, time)
    return sorted(found.values(), key=lambda each: (each.step, each.name))
