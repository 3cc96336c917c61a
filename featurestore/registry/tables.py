"""The tables of the registry. Times are microseconds since 1970 UTC; JSON values are strings."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    exists,
    false,
    select,
)
from sqlalchemy.engine import Connection

from featurestore.errors import OutOfRange

metadata = MetaData()
# The maximum length of a search string.
MAX_SEARCH_LENGTH = 1_000


def _add_partial_index(name: str, *columns: Column[Any], condition: ColumnElement[bool]) -> None:
    """Add an index of the rows that meet a condition to the table of the columns."""
    Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


featuregroups = Table(
    "featuregroups",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("table_id", String(64), nullable=False),
    Column("delta_version", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("job", String(63)),
    Column("created", BigInteger, nullable=False),
    # The time of the last write through this registry.
    Column("changed", BigInteger, nullable=False, server_default="0"),
    # The number of rows in ``features`` with the role "feature".
    Column("features", Integer, nullable=False, server_default="0"),
    UniqueConstraint("name", "version", name="uq_featuregroups_name_version"),
    Index("ix_featuregroups_changed", "changed"),
    Index("ix_featuregroups_features", "name", "version", "features"),
)

features = Table(
    "features",
    metadata,
    Column("featuregroup_id", ForeignKey("featuregroups.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("role", String(16), nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Index("ix_features_name", "name"),
)

tags = Table(
    "tags",
    metadata,
    Column("kind", String(32), primary_key=True),
    # The version of a group or dataset, or the id of a run.
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("value", Text, nullable=False),
)

lineage = Table(
    "lineage",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("delta_version", BigInteger),
    Column("job", String(63)),
    Column("run_id", String(64)),
    Column("source", Text, nullable=False),
    Column("source_version", Integer),
    Column("source_delta_version", BigInteger),
    # JSON that describes the data read from a registered source.
    Column("detail", Text),
    Index("ix_lineage_source", "source", "source_version"),
    # These contain all columns of an edge, so the distinct edges are read in the order of the index.
    Index("ix_lineage_edges", "kind", "name", "version", "job", "source", "source_version"),
    Index("ix_lineage_readers", "source", "kind", "name", "version", "job", "source_version"),
    Index("ix_lineage_job", "job", "kind", "name", "version", "source", "source_version"),
)

# One row per creation of an object from which others were computed, or that was computed from others.
# Rows are never removed, so that the origins of an object outlive the objects between.
origins = Table(
    "origins",
    metadata,
    # ``<kind>/<name>@v<version>#<creation>``
    Column("id", String(128), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    # 1 for the first object with this name and version, 2 for the next one after its deletion.
    Column("creation", Integer, nullable=False),
    Column("ended", Boolean, nullable=False),
    # The object was deleted while it was private, so it stays private.
    Column("sealed", Boolean, nullable=False),
    UniqueConstraint("kind", "name", "version", "creation", name="uq_origins_creation"),
)

# What was computed from what: ``derived`` was computed from ``origin``, or has read it.
origin_edges = Table(
    "origin_edges",
    metadata,
    Column("derived", String(128), primary_key=True),
    Column("origin", String(128), primary_key=True),
    Index("ix_origin_edges_origin", "origin"),
)

# The definition of each window aggregate in a group, dataset or view.
window_features = Table(
    "window_features",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("feature", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("source_version", Integer),
    Column("source_column", Text, nullable=False),
    Column("function", String(32), nullable=False),
    Column("over_us", BigInteger),
    Column("offset_us", BigInteger, nullable=False),
    Column("condition", Text),
    Index("ix_window_features_output", "kind", "name", "version"),
)

# Search documents; ids are not reused, since the SQLite index may contain removed ids.
search_documents = Table(
    "search_documents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("field", String(32), nullable=False),
    Column("indexed", Boolean, nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("kind", "name", "version", "field", name="uq_search_documents_field"),
    Index("ix_search_documents_indexed", "indexed"),
    sqlite_autoincrement=True,
)

# Registered sources: kind, URI, options, and secret reference.
sources = Table(
    "sources",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("spec", Text, nullable=False),
)

# Registered online stores: kind, URI and secret reference.
online_stores = Table(
    "online_stores",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("spec", Text, nullable=False),
)

training_datasets = Table(
    "training_datasets",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("manifest_hash", String(64), nullable=False),
    Column("format", String(63), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("run_id", String(64)),
    Column("created", BigInteger, nullable=False),
    UniqueConstraint("name", "version", name="uq_training_datasets_name_version"),
    Index("ix_training_datasets_created", "created"),
)

training_dataset_pins = Table(
    "training_dataset_pins",
    metadata,
    Column(
        "training_dataset_id",
        ForeignKey("training_datasets.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("featuregroup", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("delta_version", BigInteger, primary_key=True),
    Column("table_id", String(64)),
    Index("ix_pins_featuregroup", "featuregroup", "version"),
)

# The definition of each feature view version, as in its file.
feature_views = Table(
    "feature_views",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    UniqueConstraint("name", "version", name="uq_feature_views_name_version"),
)

validation_reports = Table(
    "validation_reports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("delta_version", BigInteger),
    Column("run_id", String(64)),
    Column("policy", String(16), nullable=False),
    Column("success", Boolean, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Index("ix_validation_reports_name", "kind", "name", "version"),
)
_add_partial_index(
    "ix_validation_reports_failed",
    validation_reports.c.kind,
    validation_reports.c.id,
    condition=validation_reports.c.success.is_(False),
)

# A row exists from before a write begins until its result is in the registry; if its owner dies,
# recovery completes or undoes the write.
intents = Table(
    "intents",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(63), nullable=False),
    Column("version", Integer, nullable=False),
    Column("owner", String(128), nullable=False),
    Column("created", BigInteger, nullable=False),
    Index("ix_intents_name", "kind", "name"),
)

# The last heartbeat of each writing process.
owners = Table(
    "owners",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("seen", BigInteger, nullable=False),
)

# All definitions of a job; the highest version is current.
job_definitions = Table(
    "job_definitions",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("spec", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("registered", BigInteger, nullable=False),
)

# The owner mark of each version that ``apply`` created; objects without versions have version 1.
project_definitions = Table(
    "project_definitions",
    metadata,
    Column("kind", String(32), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("project", String(63), nullable=False),
    Column("created", BigInteger, nullable=False),
    Index("ix_project_definitions_project", "project"),
)

# The state of a job, and the owner of its lease.
job_states = Table(
    "job_states",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("watermark", BigInteger),
    Column("lease_owner", String(128)),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("job", String(63), nullable=False),
    Column("job_version", Integer, nullable=False),
    Column("window_start", BigInteger, nullable=False),
    Column("window_end", BigInteger, nullable=False),
    Column("windows", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("transaction_app", Text),
    Column("transaction_number", BigInteger),
    Column("inputs", Text, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Column("rows", BigInteger),
    Column("delta_version", BigInteger),
    Column("memory", BigInteger),
    Column("error", Text),
    Column("hint", Text),
    Column("log", Text),
    Index("ix_runs_job", "job", "started"),
    Index("ix_runs_state", "job", "state", "started"),
)

# One row per attempted window: the state of the last attempt, the number of failures since the
# window was last computed, the target version that contains it, and the inputs that were read.
windows = Table(
    "windows",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("window_start", BigInteger, primary_key=True),
    Column("window_end", BigInteger, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("target_version", Integer),
    Column("tries", Integer, nullable=False),
    Column("updated", BigInteger, nullable=False),
    Column("inputs", Text, nullable=False),
    Index("ix_windows_state", "job", "state", "window_start"),
    Index("ix_windows_end", "job", "window_end"),
)


# Monitor reports by window.
monitor_results = Table(
    "monitor_results",
    metadata,
    Column("monitor", String(63), primary_key=True),
    Column("window_start", BigInteger, primary_key=True),
    Column("window_end", BigInteger, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("run_id", String(64), nullable=False),
    Column("report", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Index("ix_monitor_results_end", "monitor", "window_end"),
)

# Out-of-bounds windows that a user accepted. ``subjects`` is a JSON list of [kind, name, start of
# the new baseline or null]; a null ``window_start`` accepts all windows that end by ``until``.
monitor_acceptances = Table(
    "monitor_acceptances",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("monitor", String(63), nullable=False),
    Column("window_start", BigInteger),
    Column("until", BigInteger, nullable=False),
    Column("subjects", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Index("ix_monitor_acceptances_monitor", "monitor", "until"),
)

# Alert channels; ``secret`` is a reference.
alert_channels = Table(
    "alert_channels",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("uri", Text, nullable=False),
    Column("secret", Text),
    Column("created", BigInteger, nullable=False),
)

# An incident exists from the message about its beginning to the message about its end.
incidents = Table(
    "incidents",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("job", String(63), nullable=False),
    Column("family", String(32), nullable=False),
    Column("began", BigInteger, nullable=False),
    Column("reminded", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Index("ix_incidents_job", "job", "ended"),
)
_add_partial_index("ix_incidents_open", incidents.c.began, condition=incidents.c.ended.is_(None))

# Alert messages, added in the same transaction as their event, and the process that sends them.
outbox = Table(
    "outbox",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("channel", String(63), nullable=False),
    Column("message", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_try", BigInteger, nullable=False),
    Column("holder", String(128)),
    Column("delivered", BigInteger),
    Column("error", Text),
    Index("ix_outbox_next_try", "delivered", "next_try"),
)

# Experiment runs, copied from their run.json files.
experiment_runs = Table(
    "experiment_runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("parent", String(64)),
    Column("number", Integer),
    Column("dataset", String(63)),
    Column("dataset_version", Integer),
    Column("created", BigInteger, nullable=False),
    Index("ix_experiment_runs_name", "name", "created"),
    Index("ix_experiment_runs_created", "created", "id"),
    Index("ix_experiment_runs_reads", "name", "dataset", "dataset_version"),
    Index("ix_experiment_runs_readers", "dataset", "dataset_version", "name"),
)
_is_top_run = experiment_runs.c.parent.is_(None)
_add_partial_index(
    "ix_experiment_runs_trials",
    experiment_runs.c.parent,
    experiment_runs.c.number,
    # An index with the runs without a parent would seem to fit the lists below.
    condition=experiment_runs.c.parent.is_not(None),
)
# Lists show the runs without a parent, newest first.
for _name, _columns in (
    ("ix_experiment_runs_top", ("created", "id")),
    ("ix_experiment_runs_top_name", ("name", "created", "id")),
    ("ix_experiment_runs_top_dataset", ("dataset", "created", "id")),
    ("ix_experiment_runs_top_version", ("dataset", "dataset_version", "created", "id")),
):
    _add_partial_index(
        _name, *[experiment_runs.c[column] for column in _columns], condition=_is_top_run
    )


models = Table(
    "models",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("stage", String(16), nullable=False),
    Column("run", String(64)),
    Column("dataset", String(63), nullable=False),
    Column("dataset_version", Integer, nullable=False),
    Column("experiment", String(63)),
    Index("ix_models_dataset", "dataset", "dataset_version"),
    Index("ix_models_experiment", "experiment", "name", "version"),
    Index("ix_models_run", "run"),
)


# The progress of stream jobs: next offset and end offset of each partition.
stream_offsets = Table(
    "stream_offsets",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("topic", String(255), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger),
    Column("lag", BigInteger),
    Column("at", BigInteger, nullable=False),
)

stream_progress = Table(
    "stream_progress",
    metadata,
    Column("job", String(63), primary_key=True),
    Column("topic_id", String(64)),
    Column("rows_per_second", Float),
    Column("bad_records", BigInteger, nullable=False),
    Column("last_commit", BigInteger),
    Column("delta_version", BigInteger),
    Column("looked", BigInteger, nullable=False),
)

# -- access: users and their roles. Rebuilt from access.json, not from tables. --------------------

# ``role`` applies to the entire store; a user of an identity provider has issuer and subject.
users = Table(
    "users",
    metadata,
    Column("name", String(127), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("password", Text),
    Column("issuer", String(255)),
    Column("subject", String(255)),
    Column("created", BigInteger, nullable=False),
    UniqueConstraint("issuer", "subject", name="uq_users_identity"),
)

# Only the SHA-256 of a token is stored.
tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("username", ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
    Column("label", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    UniqueConstraint("hash", name="uq_tokens_hash"),
    Index("ix_tokens_username", "username"),
)

group_roles = Table(
    "group_roles",
    metadata,
    Column("featuregroup", String(63), primary_key=True),
    Column("username", ForeignKey("users.name", ondelete="CASCADE"), primary_key=True),
    Column("role", String(16), nullable=False),
    Index("ix_group_roles_username", "username"),
)

# Groups that only users with a role on them can read.
private_groups = Table(
    "private_groups",
    metadata,
    Column("featuregroup", String(63), primary_key=True),
    Column("created", BigInteger, nullable=False),
)

# Signed-in browsers, identified by the SHA-256 of their cookie.
sign_ins = Table(
    "sign_ins",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("username", ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
    Column("expires", BigInteger, nullable=False),
    Index("ix_sign_ins_username", "username"),
)

# Failed sign-ins by user and address, which limit password guessing.
failed_sign_ins = Table(
    "failed_sign_ins",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("who", String(191), nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("ix_failed_sign_ins_who", "who", "at"),
)

# The audit log; ``how`` is a token, the browser or the command line.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("who", String(127), nullable=False),
    Column("how", String(191), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index("ix_audit_log_at", "at"),
)


def is_latest(groups: Table) -> ColumnElement[bool]:
    """Return the condition that a row in ``featuregroups`` is the latest version of its group."""
    newer = groups.alias("newer")
    same = and_(newer.c.name == groups.c.name, newer.c.version > groups.c.version)
    return ~exists(select(newer.c.id).where(same).correlate(groups))


def check_search_text(text: str) -> None:
    """Check the length of a search string: databases limit patterns, SQLite to 50,000 characters.

    Raises:
        OutOfRange: The string is too long.
    """
    if len(text) > MAX_SEARCH_LENGTH:
        raise OutOfRange(
            f"The search text has {len(text):,} characters; the maximum is {MAX_SEARCH_LENGTH:,}.",
            hint=f"search for {text[:20]!r}",
        )


def contains_text(
    connection: Connection, column: ColumnElement[str], text: str
) -> ColumnElement[bool]:
    """Return the condition that a column contains a string, ignoring case.

    Raises:
        OutOfRange: The string is too long.
    """
    check_search_text(text)
    if connection.dialect.name == "sqlite":
        # LIKE in SQLite ignores case, and is three times as fast as lower().
        return column.contains(text, autoescape=True)
    return column.icontains(text, autoescape=True)
