"""The only package that opens files: whole files written atomically, locks, and files of shards."""
