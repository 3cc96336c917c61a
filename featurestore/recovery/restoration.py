"""What a rebuild of the registry restores: one entry for each of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Restoration:
    """What a rebuild restores of the rows of one table.

    Attributes:
        source: The files from which rows are restored, None if all rows are lost.
        lost: The information that is lost with the registry, None if all rows are restored.
        is_cleared: Whether an existing table is cleared before its rows are restored. Rows of other
            tables are retained as long as the registry exists.
        condition: The SQL condition of the rows that are restored, None for all rows.
        columns: The columns whose values are not restored, or only approximately.
    """

    source: str | None = None
    lost: str | None = None
    is_cleared: bool = False
    condition: str | None = None
    columns: frozenset[str] = frozenset()


_TABLES = "tables of feature groups"
_ACCESS = "access.json"
_ORIGINS = "files in _origins"
_MANIFESTS = "manifests of training datasets"
_ALL_METADATA = "tables, manifests, definitions of views, run records and model files"

# In the order of the page about recovery.
RESTORATIONS: Mapping[str, Restoration] = {
    "featuregroups": Restoration(
        _TABLES,
        "the time of the last change of a definition, which is that of the newest commit",
        is_cleared=True,
        columns=frozenset({"changed"}),
    ),
    "features": Restoration(_TABLES, is_cleared=True),
    "lineage": Restoration(_ALL_METADATA, is_cleared=True),
    "tags": Restoration(_ALL_METADATA, is_cleared=True),
    "window_features": Restoration(_ALL_METADATA, is_cleared=True),
    # Whether a text is in the index of trigrams depends on the database.
    "search_documents": Restoration(_ALL_METADATA, is_cleared=True, columns=frozenset({"indexed"})),
    "training_datasets": Restoration(_MANIFESTS, is_cleared=True),
    "training_dataset_pins": Restoration(_MANIFESTS, is_cleared=True),
    "feature_views": Restoration("definitions of views", is_cleared=True),
    "experiment_runs": Restoration("run records", is_cleared=True),
    "models": Restoration("model files", is_cleared=True),
    "sources": Restoration("files in sources"),
    "online_stores": Restoration("files in online_stores"),
    "origins": Restoration(_ORIGINS),
    "origin_edges": Restoration(_ORIGINS),
    "users": Restoration(_ACCESS),
    "tokens": Restoration(_ACCESS),
    "group_roles": Restoration(_ACCESS),
    "private_groups": Restoration(_ACCESS),
    "runs": Restoration(
        _TABLES,
        "failed runs, and runs that wrote no feature group; logs, memory, transaction ids and "
        "definition versions of other runs",
        condition="run_id in (select run_id from lineage)",
        columns=frozenset(
            {
                "started",
                "ended",
                "job_version",
                "owner",
                "memory",
                "log",
                "inputs",
                # Recovery needs them only for runs that have not ended.
                "transaction_app",
                "transaction_number",
            }
        ),
    ),
    "job_definitions": Restoration(lost="job definitions: register the jobs again"),
    "job_states": Restoration(
        lost="pauses and leases of jobs; registering a job restores its progress"
    ),
    "windows": Restoration(
        lost="windows of jobs: registering a job restores those with rows in a feature group"
    ),
    "stream_offsets": Restoration(
        lost="offsets of stream jobs: registering a job restores them from its commits"
    ),
    "stream_progress": Restoration(lost="rates of stream jobs"),
    "project_definitions": Restoration(
        lost="the projects that own objects: apply the projects again"
    ),
    "validation_reports": Restoration(lost="validation reports"),
    "monitor_results": Restoration(lost="monitor reports: check the windows again"),
    "monitor_acceptances": Restoration(lost="accepted monitor windows"),
    "alert_channels": Restoration(
        lost="alert channels: featurestore alert add NAME URI for each channel"
    ),
    "incidents": Restoration(lost="open incidents"),
    "outbox": Restoration(lost="alert messages that were not sent, and the history of messages"),
    "audit_log": Restoration(lost="the audit log"),
    "sign_ins": Restoration(lost="signed-in browsers: users sign in again"),
    "failed_sign_ins": Restoration(lost="counts of wrong passwords"),
    "intents": Restoration(
        lost="intents of writes that had not ended: featurestore td clean removes their files"
    ),
    "owners": Restoration(lost="heartbeats of processes, which send them again"),
}
NOT_RESTORED = tuple(entry.lost for entry in RESTORATIONS.values() if entry.lost is not None)
CLEARED_TABLES = frozenset(name for name, entry in RESTORATIONS.items() if entry.is_cleared)


def as_markdown() -> str:
    """Return the table of restorations for the documentation."""
    lines = ["| registry table | restored from | lost with the registry |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {entry.source or ''} | {entry.lost or ''} |"
        for name, entry in RESTORATIONS.items()
    ]
    return "\n".join(lines)
