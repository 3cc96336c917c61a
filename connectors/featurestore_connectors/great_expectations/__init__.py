"""Expectations of Great Expectations 1.x behind the interface Validator."""

from featurestore_connectors.great_expectations.validator import GreatExpectationsValidator

__all__ = ["GreatExpectationsValidator"]
