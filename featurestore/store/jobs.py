"""Calls that register, run and watch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import datetime
    from types import ModuleType

    from featurestore.jobs.definitions import JobDefinition
    from featurestore.jobs.scheduler import Options, Scheduler
    from featurestore.jobs.service import JobPlan, JobStatus
    from featurestore.model.times import Window
    from featurestore.registry.jobs import RegisteredJob
    from featurestore.registry.runs import Run
    from featurestore.streams.replay import Replayed

__all__ = ["JobCalls"]


class JobCalls(StoreBase):
    """The calls on jobs."""

    def register_jobs(
        self, module_or_path: ModuleType | str | os.PathLike[str]
    ) -> list[RegisteredJob]:
        """Register the jobs of a module, a Python file or a folder, and return them.

        A job that is registered already gets a new version when its definition changed, and keeps
        its watermark.

        >>> [(job.spec.name, job.version) for job in store.register_jobs("jobs.py")]
        [('mean_temp', 1)]
        """
        from featurestore.jobs.registration import register_jobs

        return register_jobs(self._session, module_or_path)

    def get_jobs(self, *, limit: int | None = None, offset: int = 0) -> list[JobStatus]:
        """Return every registered job: windows that are due, windows that failed, its last run.

        Args:
            limit: At most so many; None: all.
            offset: How many to leave out before them.

        >>> registered = store.register_jobs("jobs.py")
        >>> [(status.name, status.failed, status.last) for status in store.get_jobs()]
        [('mean_temp', 0, None)]
        """
        from featurestore.jobs import service

        return service.get_jobs(self._session, limit=limit, offset=offset)

    def plan_job(
        self, name: str, *, window: Window | tuple[datetime | str, datetime | str] | None = None
    ) -> JobPlan:
        """Return what a job would do: windows, rows and bytes of its inputs, estimated time.

        Args:
            name: Name of the job.
            window: A range of time, whose windows are planned; None: what is due.

        >>> registered = store.register_jobs("jobs.py")
        >>> print(store.plan_job("mean_temp", window=("2013-01-01T00:00Z", "2013-01-03T00:00Z")))
        mean_temp: 2 windows from 2013-01-01T00:00:00+00:00 to 2013-01-03T00:00:00+00:00
        reads about 4 rows, ... bytes; no run to estimate the time from
          weather: weather at Delta version 1, rows: about 4
        """
        from featurestore.jobs.service import plan_job

        return plan_job(self._session, name, window=window)

    def run_job(
        self,
        name: str,
        *,
        window: Window | datetime | str | None = None,
        due: bool = False,
        stale: bool = False,
    ) -> list[Run]:
        """Run a job now and return its runs.

        Without a choice the latest complete window is computed anew.

        Args:
            name: Name of the job.
            window: One window, or the time at which it begins.
            due: Every window that is due: not computed yet, or failed.
            stale: Every computed window whose inputs changed since.

        Raises:
            JobFailed: Windows could not be computed; the others were. The history has each run with
                its error.
            JobLeased: Another process runs the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> (run,) = store.run_job("mean_temp", window="2013-01-01T00:00Z")
        >>> (run.state, run.rows)
        ('done', 2)
        >>> store.get_featuregroup("mean_temp").show()
        +------+-------------------+-----+
        |origin|                day| temp|
        +------+-------------------+-----+
        |   JFK|2013-01-02 00:00:00| 38.0|
        |   LGA|2013-01-02 00:00:00|37.25|
        +------+-------------------+-----+
        """
        from featurestore.jobs import service

        return service.run_job(
            self._session,
            name,
            call=self._call_training_job,
            window=window,
            due=due,
            stale=stale,
        )

    def backfill_job(
        self,
        name: str,
        start: datetime | str,
        end: datetime | str,
        *,
        resume: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Run]:
        """Compute the windows within ``[start, end)``, many in one commit; return the runs.

        Of a monitor, the list that is returned has a ``note``: how many windows were judged and how
        many were out of bounds. Alerts are sent for the newest window only.

        Args:
            name: Name of the job.
            start: Beginning of the range.
            end: End of the range.
            resume: Leave out windows that were computed already; False computes all anew.
            progress: Gets (windows done, windows in all).

        Raises:
            JobFailed: Windows could not be computed; the others were.
            JobLeased: Another process runs the job.

        >>> registered = store.register_jobs("jobs.py")
        >>> runs = store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")
        >>> sum(run.windows for run in runs)
        7
        >>> store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")  # all done
        []
        """
        from featurestore.jobs import service
        from featurestore.jobs.execution import Watch

        watch = Watch(progress)
        return service.backfill_job(
            self._session,
            name,
            start,
            end,
            call=self._call_training_job,
            resume=resume,
            watch=watch,
        )

    def scheduler(self, options: Options | None = None) -> Scheduler:
        """Return a scheduler of this store's jobs; ``run()`` runs them until SIGTERM."""
        from featurestore.jobs.scheduler import Scheduler

        return Scheduler(self._session, call=self._call_training_job, options=options)

    def _call_training_job(self, definition: JobDefinition, window: Window) -> object:
        return definition(store=self, window=window)

    def get_runs(self, name: str) -> list[Run]:
        """Return the runs of a job, oldest first.

        >>> registered = store.register_jobs("jobs.py")
        >>> runs = store.backfill_job("mean_temp", "2013-01-01T00:00Z", "2013-01-08T00:00Z")
        >>> [(run.state, run.windows, run.rows) for run in store.get_runs("mean_temp")]
        [('done', 7, 2)]
        """
        from featurestore.jobs import service

        return service.get_runs(self._session, name)

    def pause_job(self, name: str) -> None:
        """Keep schedulers and ``run_job(due=True)`` from running a job.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.run_job("mean_temp", due=True)
        []
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=True)

    def replay_stream(self, name: str) -> Replayed:
        """Read the records of a stream job's quarantine again, and return what that came to.

        For use after a fix: of the job's schema, of an expectation, of a schema registry. Each record
        that can be read now lands once and leaves the quarantine; a row of its key and times that the
        group has already stays, and so does the record in the quarantine.

        Args:
            name: Name of the job.

        Raises:
            JobNotFound: The job does not exist.
            InvalidJob: It reads no topic, or has not run with its present columns.
            JobLeased: A run of the job is at work.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.replay_stream("mean_temp")
        Traceback (most recent call last):
        featurestore.errors.InvalidJob: Job 'mean_temp' reads no topic.
        Hint: featurestore job list
        """
        from featurestore.jobs.recovery import replay_stream

        return replay_stream(self._session, name)

    def unpause_job(self, name: str) -> None:
        """Resume a paused job; windows that it missed are due.

        >>> registered = store.register_jobs("jobs.py")
        >>> store.pause_job("mean_temp")
        >>> store.unpause_job("mean_temp")
        >>> [status.job.paused for status in store.get_jobs()]
        [False]
        """
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=False)
