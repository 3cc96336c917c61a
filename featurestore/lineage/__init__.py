"""OpenLineage events of store operations, off until a transport is configured.

``emitter`` reads the configuration, observes operations, and sends events from a background thread.
``events`` builds the events; ``facets`` and ``column_origins`` build their content from logs,
manifests and plans.
"""
