"""Engines, dataset formats, sources, validators and launchers, registered as entry points."""
