"""S3A, Hadoop's client of S3: the jars that it comes in, and whether a session has them."""

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
    """Tell whether a list of jars has S3A.

    >>> is_among("/jars/hadoop-aws-3.4.1.jar,/jars/s3-2.24.6.jar"), is_among(None)
    (True, False)
    """
    return jars is not None and "hadoop-aws" in jars


def settings() -> dict[str, str]:
    """Return what a session is built with that fetches the jars."""
    return {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.excludes": ",".join(EXCLUDED)}


def connected_bucket() -> str | None:
    """Return a bucket of S3 that this process has opened, None where there is none."""
    for root in connected_roots():
        if root.startswith("s3://"):
            return root
    return None
