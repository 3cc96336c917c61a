"""Verify training datasets: check files, recompute rows, compare datasets."""
