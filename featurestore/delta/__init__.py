"""The Delta log as the store reads and writes it."""
