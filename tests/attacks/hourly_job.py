"""A job file that adds hourly rows to the group ``numbers``."""

JOB = """
import featurestore

hourly = featurestore.sql_job(
    "hourly",
    sql="select k, t, x + 1 as y from numbers",
    inputs={"numbers": "numbers"},
    featuregroup="more",
    primary_key=["k"],
    event_time="t",
    schedule="0 * * * *",
    window="1h",
    start="2024-03-01T12:00Z",
)
"""
