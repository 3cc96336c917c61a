"""Files of a folder as one table, with one dialect and one schema."""
