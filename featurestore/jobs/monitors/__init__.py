"""Monitors as jobs: their definition, the windows that they compare, a run, what the store offers."""
