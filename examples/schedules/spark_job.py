"""Runs a job on a Spark cluster.

Spark-submit --master spark://host:7077 --packages io.delta:delta-spark_2.13:4.0.1 \\
    examples/schedules/spark_job.py /srv/features origin_traffic [start end]

The engine starts its session in the Spark of spark-submit, with all that Delta and the store need.
"""

from __future__ import annotations

import sys

import featurestore


def main(location: str, job: str, *between: str) -> None:
    """Compute what is due, or the windows of a range."""
    with featurestore.connect(location, engine="spark") as store:
        runs = store.backfill_job(job, *between) if between else store.run_job(job, due=True)
        for run in runs:
            print(run.state, run.window.start, run.window.end, run.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
