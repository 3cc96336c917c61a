"""Monitors as jobs: definitions, baselines, runs and operations."""
