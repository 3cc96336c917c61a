"""Scheduled materialization: definitions, windows, runs, backfill, scheduler."""

from featurestore.jobs.definitions import JobDefinition, job, sql_job, training_job
from featurestore.jobs.monitors.definitions import baseline, monitor_job
from featurestore.jobs.monitors.model_definitions import model_monitor_job
from featurestore.jobs.streams.run import stream_job
from featurestore.jobs.window_jobs.definitions import window_job

__all__ = [
    "JobDefinition", "baseline", "job", "model_monitor_job", "monitor_job", "sql_job",
    "stream_job", "training_job", "window_job",
]  # fmt: skip
