"""Records that pages and the REST interface share."""
