"""Jobs that read topics in micro-batches."""
