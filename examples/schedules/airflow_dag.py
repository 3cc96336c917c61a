"""Feature jobs as an Airflow DAG.

Runs due windows every five minutes, hourly groups before the daily groups that read them.

Airflow only starts the commands. The feature store records which windows are due, which failed, and
which have late rows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import (
    BashOperator,  # in Airflow 2: airflow.operators.bash
)

LOCATION = "/srv/features"

with DAG(
    dag_id="features",
    schedule="*/5 * * * *",
    start_date=datetime(2024, 1, 1),
    catchup=False,  # the feature store catches up by itself
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(minutes=1)},
) as dag:
    hours, days = (
        BashOperator(
            task_id=job, bash_command=f"featurestore --location {LOCATION} job run {job} --due"
        )
        for job in ("origin_traffic", "origin_days")
    )
    hours >> days
