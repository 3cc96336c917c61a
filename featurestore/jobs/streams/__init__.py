"""Jobs that read topics: a trigger at a time, and what their commits tell."""
