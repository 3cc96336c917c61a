"""Proof of training datasets.

Files against their manifest, rows computed again, one dataset against another.
"""
