"""Launchers of experiments: local processes, and tasks of Spark's barrier mode."""
