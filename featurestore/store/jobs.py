"""Calls that register, run and watch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.store.connected import Connected

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from datetime import datetime
    from types import ModuleType

    from featurestore.jobs.definitions import JobDefinition
    from featurestore.jobs.plan import JobPlan
    from featurestore.jobs.scheduler import Options, Scheduler
    from featurestore.jobs.service import JobStatus
    from featurestore.model.window import Window
    from featurestore.registry.jobs import RegisteredJob
    from featurestore.registry.runs import Run

__all__ = ["JobCalls"]


class JobCalls(Connected):
    """The calls on jobs."""

    def register_jobs(
        self, module_or_path: ModuleType | str | os.PathLike[str]
    ) -> list[RegisteredJob]:
        """Register the jobs of a module, a Python file or a folder of such; return them as registered.

        A job that is registered already gets a new version when its definition changed, and keeps its watermark.
        """
        from featurestore.jobs import service

        return service.register_jobs(self._session, module_or_path)

    def get_jobs(self) -> list[JobStatus]:
        """Return every registered job and how it stands: windows that are due, windows that failed, its last run."""
        from featurestore.jobs import service

        return service.get_jobs(self._session)

    def plan_job(
        self, name: str, *, window: Window | tuple[datetime | str, datetime | str] | None = None
    ) -> JobPlan:
        """Return what a job would do: windows, rows and bytes of its inputs, estimated time.

        Args:
            name: Name of the job.
            window: A range of time, whose windows are planned; None: what is due.
        """
        from featurestore.jobs.plan import plan_job

        return plan_job(self._session, name, window=window)

    def run_job(
        self,
        name: str,
        *,
        window: Window | datetime | str | None = None,
        due: bool = False,
        stale: bool = False,
    ) -> list[Run]:
        """Run a job now and return its runs; without a choice the latest complete window is computed anew.

        Args:
            name: Name of the job.
            window: One window, or the moment at which it begins.
            due: Every window that is due: not computed yet, or failed.
            stale: Every computed window whose inputs changed since.

        Raises:
            JobFailed: Windows could not be computed; the others were. The history has each run with its error.
            JobLeased: Another process runs the job.
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
        """Compute the windows that lie in ``[start, end)``, many in one commit; return the runs.

        Args:
            name: Name of the job.
            start: Beginning of the range.
            end: End of the range.
            resume: Leave out windows that were computed already; False computes all anew.
            progress: Gets (windows done, windows in all).

        Raises:
            JobFailed: Windows could not be computed; the others were.
            JobLeased: Another process runs the job.
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
        """Return the runs of a job, oldest first."""
        from featurestore.jobs import service

        return service.get_runs(self._session, name)

    def pause_job(self, name: str) -> None:
        """Keep schedulers and ``run_job(due=True)`` from running a job."""
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=True)

    def unpause_job(self, name: str) -> None:
        """Let a paused job go on; windows that it missed are due."""
        from featurestore.jobs import service

        service.set_paused(self._session, name, paused=False)
