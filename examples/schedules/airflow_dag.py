"""Feature jobs as an Airflow DAG.

Every five minutes what is due, the hours before the days that are made of them.

Airflow only says when; which windows are due, what failed and what came late is known to the
feature store.
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
