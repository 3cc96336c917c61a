"""Reading of Delta logs: snapshots, history, commit metadata and maintenance."""
