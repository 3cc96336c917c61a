"""OpenLineage events of what a store does, off until a transport is configured.

``settings`` tells whether one is, ``emitter`` observes work and sends from a thread of its own,
``events`` says what an event holds, ``datasets`` and ``columns`` read it from logs, manifests and
plans.
"""
