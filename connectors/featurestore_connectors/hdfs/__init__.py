"""A storage for stores on HDFS, based on hdfs-native."""

from featurestore_connectors.hdfs.storage import HdfsStorage

__all__ = ["HdfsStorage"]
