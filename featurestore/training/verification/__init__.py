"""Proof of training datasets: files against their manifest, rows computed again, one dataset against another."""
