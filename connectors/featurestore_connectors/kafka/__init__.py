"""Kafka: topics as sources and as streams, on the embedded engine and on Spark."""

from featurestore_connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource"]
