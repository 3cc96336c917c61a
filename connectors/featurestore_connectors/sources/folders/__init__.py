"""Files of a folder as one table: one dialect, one schema and one meaning."""
