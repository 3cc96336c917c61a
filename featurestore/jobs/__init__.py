"""Scheduled materialization: job definitions, windows, runs, backfills and the scheduler."""

from featurestore.jobs.definitions import JobDefinition, job, sql_job
from featurestore.jobs.monitors.definitions import baseline, model_monitor_job, monitor_job
from featurestore.jobs.publish_jobs import catalog_job, publish_job
from featurestore.jobs.stream_jobs import stream_job
from featurestore.jobs.training_jobs import training_job
from featurestore.jobs.window_jobs import window_job

__all__ = [
    "JobDefinition", "baseline", "catalog_job", "job", "model_monitor_job", "monitor_job", "publish_job",
    "sql_job", "stream_job", "training_job", "window_job",
]  # fmt: skip
