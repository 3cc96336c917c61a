"""Rows over HTTP: uploads that lie on disk, answers as Arrow streams that end with the client."""
