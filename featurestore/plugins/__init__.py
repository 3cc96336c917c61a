"""The interfaces of engines, formats and validators, and their lookup by entry point."""
