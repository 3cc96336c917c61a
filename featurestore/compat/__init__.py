"""Adapters with the interfaces of other feature stores."""
