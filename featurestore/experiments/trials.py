"""Trials of a study: workers that never wait for one another, each trial a run of its own.

A worker that dies is replaced, and its trial is tried again from its last checkpoint.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from featurestore.errors import RunFailed
from featurestore.experiments import catalog
from featurestore.experiments.launching import end_record, worker_task
from featurestore.experiments.progress import Listener, showing_logs
from featurestore.experiments.status import WorkerStatus, read_status
from featurestore.experiments.tasks import Fold, Task
from featurestore.experiments.trial_server import Message, TrialServer
from featurestore.model.json_object import JsonObject
from featurestore.model.run_record import RunRecord
from featurestore.model.times import utc_now
from featurestore.plugins.launcher import Gang, Launcher, RunningGang
from featurestore.session import Session
from featurestore.storage.appending import last_lines
from featurestore.storage.supervised import exit_text

_POLL_SECONDS = 0.05
_MOST_EARLY_DEATHS = 3


@dataclass(frozen=True)
class Proposal:
    """What a trial is to be: its parameters, and what an ablation leaves out."""

    number: int
    params: Mapping[str, Any]
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


class Proposals(Protocol):
    """Where trials come from, and who hears of them; one thread calls it."""

    def next(self) -> Proposal | None:
        """Return the next trial, None when there is none left."""
        ...

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Hear what a running trial reports, and tell whether to give it up."""
        ...

    def ended(self, record: RunRecord) -> None:
        """Hear how a trial ended; an error that is raised here ends the study."""
        ...


@dataclass
class _Slot:
    """A place for one worker: the gang that runs there now, and its trial."""

    key: int
    gang: RunningGang
    log: str
    trial: RunRecord | None = None
    begun: str = ""


@dataclass
class TrialPool:
    """Runs the trials of a study with some workers.

    ``template`` is what the records of all trials have in common; ``unfinished`` are trials of
    earlier that are to be tried again.
    """

    session: Session
    template: RunRecord
    launcher: Launcher
    function: bytes = field(repr=False)
    proposals: Proposals
    parallel: int
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    progress: bool | Listener | None = None
    unfinished: deque[RunRecord] = field(default_factory=deque)
    _slots: list[_Slot] = field(default_factory=list)
    _early_deaths: int = 0
    _next_key: int = 0
    _is_dry: bool = False

    @property
    def _study_directory(self) -> str:
        assert self.template.parent is not None
        study = replace(self.template, id=self.template.parent)
        return catalog.directory_of(self.session, study)

    def run(self) -> None:
        """Run trials until there are none; workers are gone when this returns."""
        server = TrialServer(self.launcher.driver_host)
        try:
            for _ in range(self.parallel):
                self._start_worker(server)
            with showing_logs(self._logs, self.progress) as show:
                while self._slots:
                    for message in server.poll(_POLL_SECONDS):
                        self._handle(server, message)
                    self._look_after(server)
                    show()
        finally:
            for slot in self._slots:
                slot.gang.stop()
                if slot.trial is not None:
                    self._save(slot, "interrupted", reason="the study ended")
            server.close()

    def _handle(self, server: TrialServer, message: Message) -> None:
        slot = self._slot(message.worker)
        if slot is None:
            return
        kind, data = message.data.text("kind"), message.data
        if kind == "report":
            server.answer(message, {"stop": self._heard(slot, data)})
            return
        changed: list[RunRecord] = []
        try:
            if kind == "ended" and slot.trial is not None:
                changed.append(self._ended(slot))
                self.proposals.ended(changed[0])
            self._early_deaths = 0
            trial = self._next_trial()
            if trial is None:
                server.answer(message, {"done": True})
                return
            slot.trial, slot.begun = trial, utc_now().isoformat()
            changed.append(trial)
            # The worker trains while records reach the disk. Until then the trial before is one
            # that runs, and the directory of this one belongs to no run.
            server.answer(message, {"task": self._task(trial).to_json()})
        finally:
            catalog.save_all(self.session, changed)

    def _logs(self) -> dict[str, str]:
        """Return the log of what each worker is at: its trial, named by what it tries."""
        found = {}
        for slot in self._slots:
            trial = slot.trial
            if trial is None:
                found[f"worker {slot.key}"] = slot.log
                continue
            path = os.path.join(catalog.directory_of(self.session, trial), "logs")
            name = f"trial {trial.number} {_tried(trial)}".rstrip()
            found[name] = os.path.join(path, "worker-00000.log")
        return found

    def _heard(self, slot: _Slot, data: JsonObject) -> bool:
        if slot.trial is None or slot.trial.number is None:
            return True
        metrics = data.object("metrics").each(JsonObject.real)
        return self.proposals.report(slot.trial.number, data.number("step"), metrics)

    def _next_trial(self) -> RunRecord | None:
        if self.unfinished:
            return self.unfinished.popleft()
        proposal = self.proposals.next()
        if proposal is None:
            self._is_dry = True
            return None
        now = utc_now().isoformat()
        return replace(
            self.template,
            id=catalog.new_id(),
            number=proposal.number,
            params=proposal.params,
            seed=proposal.seed,
            settings={**self.template.settings, **proposal.settings},
            created=now,
            started=now,
        )

    def _task(self, trial: RunRecord) -> Task:
        return Task(
            run=catalog.directory_of(self.session, trial),
            params=trial.params,
            dataset=None if trial.dataset is None else vars(trial.dataset),
            attempt=len(trial.attempts) + 1,
            seed=trial.seed,
            without=frozenset(trial.settings["without"]),
            without_layers=frozenset(trial.settings["without_layers"]),
            fold=Fold.from_json(trial.settings.get("fold")),
        )

    def _ended(self, slot: _Slot) -> RunRecord:
        """Return the record of a slot's trial whose worker says that it is over."""
        trial = slot.trial
        assert trial is not None
        directory = catalog.directory_of(self.session, trial)
        status = read_status(directory, 0, attempt=len(trial.attempts) + 1)
        assert status is not None
        reason = None
        if status.state == "failed":
            reason = f"{status.error}: {status.message}"
        return self._judged(slot, status.state, reason=reason, status=status)

    def _judged(
        self, slot: _Slot, state: Any, *, reason: str | None, status: WorkerStatus | None = None
    ) -> RunRecord:
        """Return the record of how an attempt ended, and take the trial from its slot."""
        trial = slot.trial
        assert trial is not None
        directory = catalog.directory_of(self.session, trial)
        record = end_record(trial, state, directory=directory, reason=reason, status=status)
        attempt = {
            "began": slot.begun,
            "ended": record.ended,
            "state": record.state,
            "reason": record.reason,
        }
        slot.trial = None
        return replace(record, attempts=(*trial.attempts, attempt))

    def _save(self, slot: _Slot, state: Any, *, reason: str) -> RunRecord:
        """Write how an attempt that its worker says nothing of ended."""
        record = self._judged(slot, state, reason=reason)
        catalog.save_all(self.session, [record])
        return record

    def _look_after(self, server: TrialServer) -> None:
        """Take away workers that have ended, and replace those that died."""
        for slot in list(self._slots):
            (status,) = slot.gang.poll()
            if status is None:
                continue
            slot.gang.stop()
            self._slots.remove(slot)
            if slot.trial is not None:
                self._lost(slot, status)
            elif status != 0:
                self._count_early_death(slot, status)
            if status != 0 and (self.unfinished or not self._is_dry):
                self._start_worker(server)
        if not self._slots and self.unfinished:
            self._start_worker(server)

    def _lost(self, slot: _Slot, status: int) -> None:
        """Try the trial of a worker that died again, or let it fail."""
        assert slot.trial is not None
        tries = len(slot.trial.attempts) + 1
        again = tries <= int(slot.trial.settings["retries"])
        reason = f"its worker was lost: {exit_text(status)}"
        record = self._save(slot, "running" if again else "failed", reason=reason)
        if again:
            self.unfinished.append(replace(record, ended=None, reason=None))
        else:
            self.proposals.ended(record)

    def _count_early_death(self, slot: _Slot, status: int) -> None:
        self._early_deaths += 1
        if self._early_deaths < _MOST_EARLY_DEATHS:
            return
        said = "\n".join(last_lines(slot.log, 15))
        raise RunFailed(f"Workers end before they begin a trial: {exit_text(status)}\n{said}")

    def _start_worker(self, server: TrialServer) -> None:
        key = self._next_key
        self._next_key += 1
        task = Task(run=self._study_directory, number=key)
        host, port = server.address
        serve = {"address": [host, port], "key": server.key, "worker": key}
        told = worker_task(task, environment=self.environment)
        told = replace(told, settings={"serve": serve})
        gang = self.launcher.start(Gang((told,), self.function))
        self._slots.append(_Slot(key, gang, told.log))

    def _slot(self, key: int) -> _Slot | None:
        for slot in self._slots:
            if slot.key == key:
                return slot
        return None


def _tried(trial: RunRecord) -> str:
    """Return what is special about a trial, short.

    >>> params = {"lr": 0.0123456, "units": 8}
    >>> _tried(RunRecord("20130101-000000-abcdef", "n", "trial", "running", "", params))
    'lr=0.01235 units=8'
    """
    component = trial.settings.get("component")
    if component is not None:
        return str(component)
    told = []
    for name, value in trial.params.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        told.append(f"{name}={shown}")
    return " ".join(told)
