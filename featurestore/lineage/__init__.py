"""OpenLineage events of store operations, off until a transport is configured.

``settings`` reads the configuration, ``emitter`` observes operations and sends events from a
background thread, ``events`` builds events, ``datasets`` and ``column_origins`` read their content
from logs, manifests and plans.
"""
