"""Stores on HDFS, through hdfs-native."""

from featurestore_connectors.hdfs.storage import HdfsStorage

__all__ = ["HdfsStorage"]
