"""Trial pool of a study: asynchronous workers, one run per trial.

A worker that dies is replaced, and its trial is retried from its last checkpoint.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from featurestore.errors import RunFailed
from featurestore.experiments import catalog
from featurestore.experiments.launching import build_worker_task, finish_record
from featurestore.experiments.status import Listener, WorkerStatus, read_status, show_logs
from featurestore.experiments.tasks import Fold, Task
from featurestore.model.json_object import JsonMapping, JsonObject
from featurestore.model.run_record import RunRecord, State
from featurestore.model.times import utc_now
from featurestore.plugins.launcher import Gang, Launcher, RunningGang
from featurestore.plugins.worker_port import Peer, Received, WorkerPort
from featurestore.recovery import record_files
from featurestore.session import Session
from featurestore.storage.appending import read_last_lines
from featurestore.storage.supervised import describe_exit


@dataclass(frozen=True)
class Message:
    """A message from a worker."""

    peer: Peer
    worker: int
    data: JsonObject


class TrialServer:
    """Accepts connections from workers; only one thread calls it."""

    def __init__(self, host: str) -> None:
        self._port = WorkerPort(host)
        self.address, self.key = self._port.address, self._port.key
        self._workers: dict[Peer, int] = {}

    def poll(self, seconds: float) -> list[Message]:
        """Return messages from workers, waiting at most ``seconds`` for the first message."""
        messages = []
        for received in self._port.poll(seconds):
            message = self._parse(received)
            if message is not None:
                messages.append(message)
        return messages

    def reply(self, message: Message, data: JsonMapping) -> None:
        """Reply to a message; the reply to a disconnected worker is dropped."""
        self._port.send(message.peer, json.dumps(data).encode())

    def close(self) -> None:
        """Close all connections."""
        self._port.close()

    def _parse(self, received: Received) -> Message | None:
        """Return the parsed message; disconnect a worker that sends an invalid message."""
        if received.data is None:
            self._workers.pop(received.peer, None)
            return None
        try:
            data = JsonObject.from_value(json.loads(received.data), "message")
            message = Message(received.peer, data.number("worker"), data)
            # A connection must not report for the trial of another worker.
            if self._workers.setdefault(message.peer, message.worker) != message.worker:
                raise data.wrong_type_error("worker", "that of the connection")
            # Check reports here, so that a malformed one ends only its connection and not the
            # study.
            if data.text("kind") == "report":
                data.number("step")
                data.object("metrics").read_values(JsonObject.real)
        except (ValueError, RecursionError):  # MalformedJson is a ValueError
            self._port.drop(received.peer)
            return None
        return message


_POLL_SECONDS = 0.05
# A study fails when this many consecutive workers die before they begin a trial.
_MAX_EARLY_DEATHS = 3


@dataclass(frozen=True)
class Proposal:
    """The parameters of a trial, and the components that an ablation removes."""

    number: int
    params: JsonMapping
    seed: int = 0
    settings: JsonMapping = field(default_factory=dict)


class Proposals(Protocol):
    """Source of trials, notified of trial reports and ends. Only one thread calls it."""

    def next(self) -> Proposal | None:
        """Return the next trial, None if there are no more."""
        ...

    def report(self, number: int, step: int, metrics: Mapping[str, float]) -> bool:
        """Record the metrics of a running trial and return True to stop it."""
        ...

    def ended(self, record: RunRecord) -> None:
        """Record the end of a trial; an exception aborts the study."""
        ...


@dataclass
class _WorkerSlot:
    """A worker slot: its gang and its current trial."""

    key: int
    gang: RunningGang
    log: str
    trial: RunRecord | None = None
    attempt_start: str = ""


@dataclass
class TrialPool:
    """Runs the trials of a study on a fixed number of workers.

    ``template`` contains the common fields of all trial records; ``unfinished`` contains earlier
    trials to retry.
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
    _slots: list[_WorkerSlot] = field(default_factory=list)
    _early_deaths: int = 0
    _next_key: int = 0
    _is_exhausted: bool = False

    @property
    def _study_directory(self) -> str:
        assert self.template.parent is not None
        return record_files.run_directory(
            self.session.paths, self.template.name, self.template.parent
        )

    def run(self) -> None:
        """Run trials until none remain; all workers have ended on return."""
        server = TrialServer(self.launcher.driver_host)
        try:
            for _ in range(self.parallel):
                self._start_worker(server)
            with show_logs(self._logs, self.progress) as show:
                while self._slots:
                    for message in server.poll(_POLL_SECONDS):
                        self._handle(server, message)
                    self._replace_ended_workers(server)
                    show()
        finally:
            for slot in self._slots:
                slot.gang.stop()
                if slot.trial is not None:
                    self._save_attempt(slot, "interrupted", reason="the study ended")
            server.close()

    def _handle(self, server: TrialServer, message: Message) -> None:
        """Record a report, or end the trial of a worker and send it the next one."""
        slot = self._find_slot(message.worker)
        # The message arrived after its worker was removed.
        if slot is None:
            return
        subject, data = message.data.text("kind"), message.data
        if subject == "report":
            server.reply(message, {"stop": self._report_metrics(slot, data)})
            return
        changed: list[RunRecord] = []
        try:
            if subject == "ended" and slot.trial is not None:
                changed.append(self._end_trial(slot))
                self.proposals.ended(changed[0])
            # This worker started, so earlier deaths were not caused by the environment of all
            # workers.
            self._early_deaths = 0
            trial = self._next_trial()
            if trial is None:
                server.reply(message, {"done": True})
                return
            slot.trial, slot.attempt_start = trial, utc_now().isoformat()
            changed.append(trial)
            # The worker trains while the records are written. Until then the previous trial is
            # still recorded as running, and no record refers to the new directory.
            server.reply(message, {"task": self._build_task(trial).to_json()})
        finally:
            # Also if ``ended`` aborted the study, because the trial has ended.
            catalog.save_all(self.session, changed)

    def _logs(self) -> dict[str, str]:
        """Return the worker log paths, by the label of the current trial."""
        log_paths = {}
        for slot in self._slots:
            trial = slot.trial
            if trial is None:
                log_paths[f"worker {slot.key}"] = slot.log
                continue
            path = os.path.join(catalog.run_directory(self.session, trial), "logs")
            name = f"trial {trial.number} {_trial_label(trial)}".rstrip()
            log_paths[name] = os.path.join(path, "worker-00000.log")
        return log_paths

    def _report_metrics(self, slot: _WorkerSlot, data: JsonObject) -> bool:
        if slot.trial is None or slot.trial.number is None:
            return True
        metrics = data.object("metrics").read_values(JsonObject.real)
        return self.proposals.report(slot.trial.number, data.number("step"), metrics)

    def _next_trial(self) -> RunRecord | None:
        """Return the record of the next trial, or None after the last one."""
        if self.unfinished:
            return self.unfinished.popleft()
        proposal = self.proposals.next()
        if proposal is None:
            self._is_exhausted = True
            return None
        now = utc_now().isoformat()
        return replace(
            self.template,
            id=catalog.generate_run_id(),
            number=proposal.number,
            params=proposal.params,
            seed=proposal.seed,
            settings={**self.template.settings, **proposal.settings},
            created=now,
            started=now,
        )

    def _build_task(self, trial: RunRecord) -> Task:
        return Task(
            run=catalog.run_directory(self.session, trial),
            params=trial.params,
            dataset=None if trial.dataset is None else vars(trial.dataset),
            attempt=len(trial.attempts) + 1,
            seed=trial.seed,
            without=frozenset(trial.settings["without"]),
            without_layers=frozenset(trial.settings["without_layers"]),
            fold=Fold.of_run(trial.settings),
        )

    def _end_trial(self, slot: _WorkerSlot) -> RunRecord:
        """Return the final record of a slot's trial, from the status file of its worker."""
        trial = slot.trial
        assert trial is not None
        directory = catalog.run_directory(self.session, trial)
        status = read_status(directory, 0, attempt=len(trial.attempts) + 1)
        assert status is not None
        reason = None
        if status.state == "failed":
            reason = f"{status.error}: {status.message}"
        return self._end_attempt(slot, status.state, reason=reason, status=status)

    def _end_attempt(
        self,
        slot: _WorkerSlot,
        state: State,
        *,
        reason: str | None,
        status: WorkerStatus | None = None,
    ) -> RunRecord:
        """Record the end of an attempt, and clear the slot."""
        trial = slot.trial
        assert trial is not None
        directory = catalog.run_directory(self.session, trial)
        record = finish_record(trial, state, directory=directory, reason=reason, status=status)
        attempt = {
            "began": slot.attempt_start,
            "ended": record.ended,
            "state": record.state,
            "reason": record.reason,
        }
        slot.trial = None
        return record.with_attempt(attempt)

    def _save_attempt(self, slot: _WorkerSlot, state: State, *, reason: str) -> RunRecord:
        """Save the end of an attempt whose worker did not report a status."""
        record = self._end_attempt(slot, state, reason=reason)
        catalog.save_all(self.session, [record])
        return record

    def _replace_ended_workers(self, server: TrialServer) -> None:
        """Remove workers that have ended, and replace those that died."""
        for slot in list(self._slots):
            (status,) = slot.gang.poll()
            if status is None:
                continue
            slot.gang.stop()
            self._slots.remove(slot)
            if slot.trial is not None:
                self._retry_or_fail(slot, status)
            elif status != 0:
                self._count_early_death(slot, status)
            # A worker exits with status 0 when the driver has no more trials for it.
            if status != 0 and (self.unfinished or not self._is_exhausted):
                self._start_worker(server)
        # The last worker may die when the others have already ended; its trial needs another
        # worker.
        if not self._slots and self.unfinished:
            self._start_worker(server)

    def _retry_or_fail(self, slot: _WorkerSlot, status: int) -> None:
        """Retry the trial of a dead worker, or mark it as failed."""
        assert slot.trial is not None
        tries = len(slot.trial.attempts) + 1
        can_retry = tries <= int(slot.trial.settings["retries"])
        reason = f"its worker was lost: {describe_exit(status)}"
        # Until its retry the trial is saved as running, so that a resumed study finds it.
        record = self._save_attempt(slot, "running" if can_retry else "failed", reason=reason)
        if can_retry:
            self.unfinished.append(record.running_again())
        else:
            self.proposals.ended(record)

    def _count_early_death(self, slot: _WorkerSlot, status: int) -> None:
        """Count a worker that died before its first trial; fail the study after several."""
        self._early_deaths += 1
        if self._early_deaths < _MAX_EARLY_DEATHS:
            return
        log_tail = "\n".join(read_last_lines(slot.log, 15))
        raise RunFailed(
            f"Workers exit before they start a trial: {describe_exit(status)}\n{log_tail}"
        )

    def _start_worker(self, server: TrialServer) -> None:
        key = self._next_key
        self._next_key += 1
        # The worker has its own log in the study's directory until it gets a trial.
        task = Task(run=self._study_directory, number=key)
        host, port = server.address
        serve = {"address": [host, port], "key": server.key, "worker": key}
        worker = build_worker_task(task, {"serve": serve}, index=key, environment=self.environment)
        gang = self.launcher.start(Gang((worker,), self.function))
        self._slots.append(_WorkerSlot(key, gang, worker.log))

    def _find_slot(self, key: int) -> _WorkerSlot | None:
        return next((slot for slot in self._slots if slot.key == key), None)


def _trial_label(trial: RunRecord) -> str:
    """Return a short label for a trial: its parameters or its component.

    >>> params = {"lr": 0.0123456, "units": 8}
    >>> _trial_label(RunRecord("20130101-000000-abcdef", "n", "trial", "running", "", params))
    'lr=0.01235 units=8'
    """
    component = trial.settings.get("component")
    if component is not None:
        return str(component)
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in trial.params.items()
    )
