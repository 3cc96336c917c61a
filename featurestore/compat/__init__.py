"""Adapters for the interfaces of other feature stores."""
