"""Launchers of experiments: processes of this machine, and the barrier mode of Spark."""
