"""Specifications and stored records: frozen dataclasses and pure functions, without I/O."""
