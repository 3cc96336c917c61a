"""The tables of the first release.

Revisions below 0100 were never released; a registry that has one is rebuilt from the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from featurestore.registry import search_documents

revision = "0100"
down_revision = None


def upgrade() -> None:
    _create_alert_channels()
    _create_audit_log()
    _create_experiment_runs()
    _create_failed_sign_ins()
    _create_feature_views()
    _create_featuregroups()
    _create_incidents()
    _create_intents()
    _create_job_definitions()
    _create_job_states()
    _create_lineage()
    _create_models()
    _create_monitor_acceptances()
    _create_monitor_results()
    _create_online_stores()
    _create_outbox()
    _create_owners()
    _create_private_groups()
    _create_runs()
    _create_search_documents()
    _create_sources()
    _create_stream_offsets()
    _create_stream_progress()
    _create_tags()
    _create_training_datasets()
    _create_users()
    _create_validation_reports()
    _create_window_features()
    _create_windows()
    _create_features()
    _create_group_roles()
    _create_sign_ins()
    _create_tokens()
    _create_training_dataset_pins()
    search_documents.create_index(op.get_bind())


def _create_alert_channels() -> None:
    op.create_table(
        "alert_channels",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(127), nullable=False),
        sa.Column("how", sa.String(191), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])


def _create_experiment_runs() -> None:
    op.create_table(
        "experiment_runs",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parent", sa.String(64)),
        sa.Column("number", sa.Integer),
        sa.Column("dataset", sa.String(63)),
        sa.Column("dataset_version", sa.Integer),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_experiment_runs_dataset", "experiment_runs", ["dataset", "dataset_version"])
    op.create_index("ix_experiment_runs_name", "experiment_runs", ["name", "created"])
    op.create_index("ix_experiment_runs_parent", "experiment_runs", ["parent", "number"])


def _create_failed_sign_ins() -> None:
    op.create_table(
        "failed_sign_ins",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("who", sa.String(191), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_failed_sign_ins_who", "failed_sign_ins", ["who", "at"])


def _create_feature_views() -> None:
    op.create_table(
        "feature_views",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "version", name="uq_feature_views_name_version"),
    )


def _create_featuregroups() -> None:
    op.create_table(
        "featuregroups",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("table_id", sa.String(64), nullable=False),
        sa.Column("delta_version", sa.BigInteger, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("description", sa.Text, server_default="", nullable=False),
        sa.Column("job", sa.String(63)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "version", name="uq_featuregroups_name_version"),
    )
    op.create_index("ix_featuregroups_changed", "featuregroups", ["changed"])


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("family", sa.String(32), nullable=False),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("reminded", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_incidents_job", "incidents", ["job", "ended"])


def _create_intents() -> None:
    op.create_table(
        "intents",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_intents_name", "intents", ["kind", "name"])


def _create_job_definitions() -> None:
    op.create_table(
        "job_definitions",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("registered", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )


def _create_job_states() -> None:
    op.create_table(
        "job_states",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("paused", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("watermark", sa.BigInteger),
        sa.Column("lease_owner", sa.String(128)),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_lineage() -> None:
    op.create_table(
        "lineage",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("job", sa.String(63)),
        sa.Column("run_id", sa.String(64)),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_version", sa.Integer),
        sa.Column("source_delta_version", sa.BigInteger),
        sa.Column("detail", sa.Text),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_lineage_output", "lineage", ["kind", "name", "version"])
    op.create_index("ix_lineage_source", "lineage", ["source", "source_version"])


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("run", sa.String(64)),
        sa.Column("dataset", sa.String(63), nullable=False),
        sa.Column("dataset_version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", "version"),
    )
    op.create_index("ix_models_dataset", "models", ["dataset", "dataset_version"])
    op.create_index("ix_models_run", "models", ["run"])


def _create_monitor_acceptances() -> None:
    op.create_table(
        "monitor_acceptances",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("monitor", sa.String(63), nullable=False),
        sa.Column("window_start", sa.BigInteger),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("subjects", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_monitor_acceptances_monitor", "monitor_acceptances", ["monitor", "until"])


def _create_monitor_results() -> None:
    op.create_table(
        "monitor_results",
        sa.Column("monitor", sa.String(63), nullable=False),
        sa.Column("window_start", sa.BigInteger, nullable=False),
        sa.Column("window_end", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("monitor", "window_start", "window_end"),
    )
    op.create_index("ix_monitor_results_end", "monitor_results", ["monitor", "window_end"])


def _create_online_stores() -> None:
    op.create_table(
        "online_stores",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("channel", sa.String(63), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_try", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.String(128)),
        sa.Column("delivered", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_outbox_next_try", "outbox", ["delivered", "next_try"])


def _create_owners() -> None:
    op.create_table(
        "owners",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_private_groups() -> None:
    op.create_table(
        "private_groups",
        sa.Column("featuregroup", sa.String(63), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("featuregroup"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("job_version", sa.Integer, nullable=False),
        sa.Column("window_start", sa.BigInteger, nullable=False),
        sa.Column("window_end", sa.BigInteger, nullable=False),
        sa.Column("windows", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("transaction_app", sa.Text),
        sa.Column("transaction_number", sa.BigInteger),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("rows", sa.BigInteger),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("memory", sa.BigInteger),
        sa.Column("error", sa.Text),
        sa.Column("hint", sa.Text),
        sa.Column("log", sa.Text),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index("ix_runs_job", "runs", ["job", "started"])
    op.create_index("ix_runs_state", "runs", ["job", "state", "started"])


def _create_search_documents() -> None:
    op.create_table(
        "search_documents",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("field", sa.String(32), nullable=False),
        sa.Column("indexed", sa.Boolean, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("kind", "name", "version", "field", name="uq_search_documents_field"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_search_documents_indexed", "search_documents", ["indexed"])


def _create_sources() -> None:
    op.create_table(
        "sources",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_stream_offsets() -> None:
    op.create_table(
        "stream_offsets",
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("topic", sa.String(255), nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("end_offset", sa.BigInteger),
        sa.Column("lag", sa.BigInteger),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job", "topic", "partition"),
    )


def _create_stream_progress() -> None:
    op.create_table(
        "stream_progress",
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("topic_id", sa.String(64)),
        sa.Column("rows_per_second", sa.Float()),
        sa.Column("bad_records", sa.BigInteger, nullable=False),
        sa.Column("last_commit", sa.BigInteger),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("looked", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job"),
    )


def _create_tags() -> None:
    op.create_table(
        "tags",
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "version", "key"),
    )


def _create_training_datasets() -> None:
    op.create_table(
        "training_datasets",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("manifest_hash", sa.String(64), nullable=False),
        sa.Column("format", sa.String(63), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("description", sa.Text, server_default="", nullable=False),
        sa.Column("run_id", sa.String(64)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "version", name="uq_training_datasets_name_version"),
    )


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.String(127), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password", sa.Text),
        sa.Column("issuer", sa.String(255)),
        sa.Column("subject", sa.String(255)),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("issuer", "subject", name="uq_users_identity"),
    )


def _create_validation_reports() -> None:
    op.create_table(
        "validation_reports",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delta_version", sa.BigInteger),
        sa.Column("run_id", sa.String(64)),
        sa.Column("policy", sa.String(16), nullable=False),
        sa.Column("success", sa.Boolean, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_validation_reports_name", "validation_reports", ["kind", "name", "version"])


def _create_window_features() -> None:
    op.create_table(
        "window_features",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("feature", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("source_version", sa.Integer),
        sa.Column("source_column", sa.Text, nullable=False),
        sa.Column("function", sa.String(32), nullable=False),
        sa.Column("over_us", sa.BigInteger),
        sa.Column("offset_us", sa.BigInteger, nullable=False),
        sa.Column("condition", sa.Text),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_window_features_output", "window_features", ["kind", "name", "version"])


def _create_windows() -> None:
    op.create_table(
        "windows",
        sa.Column("job", sa.String(63), nullable=False),
        sa.Column("window_start", sa.BigInteger, nullable=False),
        sa.Column("window_end", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("target_version", sa.Integer),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("updated", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job", "window_start", "window_end"),
    )
    op.create_index("ix_windows_end", "windows", ["job", "window_end"])
    op.create_index("ix_windows_state", "windows", ["job", "state", "window_start"])


def _create_features() -> None:
    op.create_table(
        "features",
        sa.Column("featuregroup_id", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("description", sa.Text, server_default="", nullable=False),
        sa.ForeignKeyConstraint(["featuregroup_id"], ["featuregroups.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("featuregroup_id", "position"),
    )
    op.create_index("ix_features_name", "features", ["name"])


def _create_group_roles() -> None:
    op.create_table(
        "group_roles",
        sa.Column("featuregroup", sa.String(63), nullable=False),
        sa.Column("username", sa.String(127), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.ForeignKeyConstraint(["username"], ["users.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("featuregroup", "username"),
    )
    op.create_index("ix_group_roles_username", "group_roles", ["username"])


def _create_sign_ins() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("username", sa.String(127), nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["username"], ["users.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_index("ix_sign_ins_username", "sign_ins", ["username"])


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("username", sa.String(127), nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.ForeignKeyConstraint(["username"], ["users.name"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_index("ix_tokens_username", "tokens", ["username"])


def _create_training_dataset_pins() -> None:
    op.create_table(
        "training_dataset_pins",
        sa.Column("training_dataset_id", sa.Integer, nullable=False),
        sa.Column("featuregroup", sa.String(63), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delta_version", sa.BigInteger, nullable=False),
        sa.Column("table_id", sa.String(64)),
        sa.ForeignKeyConstraint(
            ["training_dataset_id"], ["training_datasets.id"], ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("training_dataset_id", "featuregroup", "version", "delta_version"),
    )
    op.create_index("ix_pins_featuregroup", "training_dataset_pins", ["featuregroup", "version"])
