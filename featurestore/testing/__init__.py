"""Conformance suites for plugins, and the point-in-time oracle."""
