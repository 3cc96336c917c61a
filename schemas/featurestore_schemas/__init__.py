"""JSON Schemas of what featurestore writes: manifest, feature group, job, report, statistics."""
