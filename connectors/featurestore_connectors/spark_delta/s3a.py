"""The jars of S3A, Hadoop's S3 client."""

from __future__ import annotations

from featurestore.storage.connections import connected_roots

# The Hadoop that Spark 4.0 brings, and the parts of the AWS client that it was built with: 15 MB,
# where the bundle of all of AWS has 558.
PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.4.1",
    "software.amazon.awssdk:s3:2.24.6",
    "software.amazon.awssdk:s3-transfer-manager:2.24.5",
    "software.amazon.awssdk:sts:2.24.6",
)
# Spark has netty and a logger of its own.
EXCLUDED = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*")
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def is_among(jars: str | None) -> bool:
    """Return True if a list of jars contains S3A.

    >>> is_among("/jars/hadoop-aws-3.4.1.jar,/jars/s3-2.24.6.jar"), is_among(None)
    (True, False)
    """
    return jars is not None and "hadoop-aws" in jars


def settings() -> dict[str, str]:
    """Return the session settings that download the jars."""
    return {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.excludes": ",".join(EXCLUDED)}


def connected_bucket() -> str | None:
    """Return an S3 bucket that this process has opened, or None."""
    for root in connected_roots():
        if root.startswith("s3://"):
            return root
    return None
