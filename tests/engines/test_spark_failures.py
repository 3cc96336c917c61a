"""Spark errors are reduced to the reason and the expression."""

from __future__ import annotations

import pytest

from featurestore_connectors.spark_delta.failures import first_line

CAST = """[CAST_INVALID_INPUT] The value 'x1' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018
== SQL (line 1, position 8) ==
select cast(zone as int) as y from trips
       ^^^^^^^^^^^^^^^^^
"""
JOB = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (10.0.0.1 executor driver): org.apache.spark.{}
\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:650)
"""


class Java:
    """A JVM exception as py4j returns it."""

    def __init__(self, text: str, cause: Java | None = None) -> None:
        self.toString = lambda: text
        self.getCause = lambda: cause


class CallError(Exception):
    def __init__(self, java: Java) -> None:
        self.java_exception = java
        super().__init__("An error occurred while calling o123.save.\n: what Java says")


MESSAGE = '[CAST_INVALID_INPUT] The value \'x1\' of the type "STRING" cannot be cast to "INT".'


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError(CAST), f"{MESSAGE} In: cast(zone as int)"),
        (
            CallError(Java("java.lang.RuntimeException: outer", Java(f"org.apache.E: {CAST}"))),
            f"{MESSAGE} In: cast(zone as int)",
        ),
        (
            CallError(Java(JOB.format(f"SparkNumberFormatException: {CAST}"))),
            f"{MESSAGE} In: cast(zone as int)",
        ),
        (
            CallError(
                Java(
                    JOB.format("SparkException: [TASK_WRITE_FAILED] Task failed while writing.")
                    + f"Caused by: org.apache.spark.SparkNumberFormatException: {CAST}\t... 16 more"
                )
            ),
            f"{MESSAGE} In: cast(zone as int)",
        ),
        (
            ValueError("\n[PARSE_SYNTAX_ERROR] Near '>'. SQLSTATE: 42601\n\n== SQL ==\na > > 1\n----^\n"),
            "[PARSE_SYNTAX_ERROR] Near '>'. In: a > > 1",
        ),
        (
            ValueError("[UNRESOLVED_COLUMN] A column `n` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n'Project"),
            "[UNRESOLVED_COLUMN] A column `n` cannot be resolved.",
        ),
        (
            CallError(Java("java.net.URISyntaxException: Illegal character: p=a:b")),
            "Illegal character: p=a:b",
        ),
        (
            ValueError('Traceback (most recent call last):\n  File "x", line 1\n    1/0\n    ~^~\nKeyError: 3\n\n'),
            "KeyError: 3",
        ),
        (ValueError(""), "ValueError"),
    ],
)  # fmt: skip
def test_error_reason_is_last_cause_with_expression(error: Exception, line: str) -> None:
    assert first_line(error) == line
