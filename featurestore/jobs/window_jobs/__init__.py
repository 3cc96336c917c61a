"""Jobs that write aggregates over windows, with the bits of retrieval."""
