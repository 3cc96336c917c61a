"""Sessions of Spark Connect, whose Spark runs in another process.

Such a session has no JVM in this process. SQL functions of the store (``jvm/StoreFunctions.java``)
return settings of the server, and SQL commands replace calls of Delta's classes. The server and this
process must see the directory of the store under the same path.
"""

from __future__ import annotations

import atexit
import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from featurestore.arrow.spark_frames import is_connect_object
from featurestore.errors import ConfigurationError
from featurestore_connectors.spark_delta.jars import JVM_JAR
from featurestore_connectors.spark_delta.sqltext import convert_parameters, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension,featurestore.spark.StoreExtensions"
_FUNCTION = "featurestore_row_hash"


def check_server(session: SparkSession) -> None:
    """Raise ConfigurationError if the server of a session lacks the store's jar or extension."""
    if session.catalog.functionExists(_FUNCTION):
        return
    raise ConfigurationError(
        "engine='spark' needs the store's jar and its extension in Spark, but the Spark Connect "
        f"server {session.client.host} lacks them. The embedded engine also reads DataFrames of "
        "this session.",
        hint=f"start the server with spark.jars={JVM_JAR} and spark.sql.extensions={EXTENSIONS}, "
        "or use featurestore.connect(engine='duckdb')",
    )


def refuse(session: SparkSession, operation: str) -> None:
    """Raise ConfigurationError if a session belongs to Spark Connect.

    Args:
        session: The session.
        operation: The operation that needs the JVM, such as "A stream job".
    """
    if is_connect_object(session):
        raise ConfigurationError(
            f"{operation} needs Spark in this process, but the active SparkSession is a Spark "
            f"Connect session ({session.client.host}).",
            hint="use a SparkSession without remote(), or featurestore.connect(engine='duckdb')",
        )


def read_log_store_settings(session: SparkSession, keys: Iterable[str]) -> dict[str, str]:
    """Return the settings of Delta's log stores with which the server was started, or ""."""
    names = list(keys)
    calls = ", ".join(f"featurestore_log_store('{name}')" for name in names)
    values = session.sql(f"SELECT {calls}").collect()[0]
    return dict(zip(names, values, strict=True))


def read_parallelism(session: SparkSession) -> int:
    """Return the number of tasks that the server's application runs at a time."""
    return int(session.sql("SELECT featurestore_parallelism()").collect()[0][0])


def open_session(parent: SparkSession) -> SparkSession:
    """Return another session of the same server and user, with the settings of ``parent``."""
    connection = copy.copy(parent.client._builder)
    # A session id in the URL would open the same session again.
    parameters = {**connection._params}
    parameters.pop("session_id", None)
    connection._params = parameters
    session = type(parent)(connection, userId=parent.client._user_id)
    settings = session.conf.getAll
    for key, value in parent.conf.getAll.items():
        if settings.get(key) != value and session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def close_session(session: SparkSession) -> None:
    """Release a session of ``open_session`` on the server."""
    session.client.release_session()
    session.client.close()
    # Otherwise pyspark keeps each client until the process exits.
    atexit.unregister(getattr(session.client, "_cleanup_ml", session.client.close))


def run_query(
    session: SparkSession, query: str, *, frames: Mapping[str, Any], parameters: Mapping[str, Any]
) -> DataFrame:
    """Return the lazy result of a query over named frames.

    The server resolves names when it runs the query. Views could have other rows by then, so the
    query contains the frames as common table expressions.
    """
    text = convert_parameters(query)
    tables: dict[str, Any] = {}
    definitions = []
    for number, (name, frame) in enumerate(frames.items()):
        tables[f"table_{number}"] = frame
        definitions.append(f"{_escape(quote(name))} AS (SELECT * FROM {{table_{number}}})")
    if tables:
        # The line break ends a comment in the last line of the query.
        text = f"WITH {', '.join(definitions)} SELECT * FROM ({_escape(text)}\n)"
    if parameters and not session.version.startswith("4.0."):
        # As ``relations.run_sql``. The query is parsed again when it runs, so the setting stays.
        session.conf.set("spark.sql.legacy.parameterSubstitution.constantsOnly", "true")
    return session.sql(text, args=dict(parameters), **tables)


def _escape(text: str) -> str:
    """Escape the braces of a text, with which pyspark marks frames in a query."""
    return text.replace("{", "{{").replace("}", "}}")


def merge_rows(
    session: SparkSession,
    path: str,
    source: Any,
    columns: Mapping[str, str],
    *,
    matched: str,
    inserted: str,
    grows: bool,
) -> None:
    """Delete ``matched`` rows of a table, and insert the ``inserted`` rows of ``source``.

    ``columns`` maps columns of the table to expressions; with ``grows``, some are new. Conditions
    and expressions name the table ``old`` and the source ``new``.
    """
    view = "featurestore_new_rows"
    source.createOrReplaceTempView(view)
    # Delta 4.0 ignores WITH SCHEMA EVOLUTION in SQL for columns of SET.
    session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", str(grows).lower())
    session.sql(
        f"MERGE INTO {table_at(path)} AS old USING {view} AS new ON {matched} "
        f"WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED AND {inserted} THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(columns.values())})"
    )


def table_at(path: str) -> str:
    """Return the SQL name of the Delta table at a path.

    >>> table_at("/data/rows")
    'delta.`/data/rows`'
    """
    return f"delta.{quote(path)}"
