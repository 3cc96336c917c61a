"""Experiment launchers: local processes, and barrier tasks of Spark."""
