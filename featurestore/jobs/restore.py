"""What a job's table says of its runs: for a registry that was lost."""

from __future__ import annotations

import os
from datetime import datetime

from sqlalchemy.engine import Connection

from featurestore.delta import commits
from featurestore.delta.deltalog import LogCommit
from featurestore.jobs.run import record_computed
from featurestore.jobs.schedule import windows_between
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.target import job_commits
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.job import JobSpec
from featurestore.model.window import Window
from featurestore.registry import featuregroups, runs
from featurestore.registry.runs import Run
from featurestore.session import Session


def restore_runs(connection: Connection, spec: FeatureGroupSpec, path: str) -> None:
    """Record the successful runs that the commits of a group's table tell of; for ``registry rebuild``."""
    for commit in reversed(job_commits(path)):
        runs.restore(connection, _run(path, commit))


def restore(connection: Connection, session: Session, spec: JobSpec) -> None:
    """Bring back runs, computed windows and watermark of a job from the commits of its group, the oldest first."""
    if spec.kind == "training":
        return
    for version in featuregroups.versions(connection, spec.target):
        path = session.featuregroup_path(spec.target, version)
        if not os.path.isdir(path):
            continue
        for commit in reversed(job_commits(path, spec.name)):
            run = _run(path, commit)
            runs.restore(connection, run)
            windows = windows_between(schedule_of(spec), run.window.start, run.window.end)
            record_computed(connection, spec, windows, run, version)


def _run(path: str, commit: LogCommit) -> Run:
    told = commit.note["window"]
    window = Window(datetime.fromisoformat(told["start"]), datetime.fromisoformat(told["end"]))
    return Run(
        run_id=str(commit.note.get("run")),
        job=told["job"],
        job_version=0,
        window=window,
        windows=int(told["count"]),
        state=runs.DONE,
        owner="restored",
        inputs={"inputs": list(commit.note.get("inputs") or ())},
        started=commit.time,
        ended=commit.time,
        rows=commits.commit_of(path, commit.version).rows_in,
        delta_version=commit.version,
    )
