"""Validator for expectations of Great Expectations 1.x."""

from featurestore_connectors.great_expectations.validator import GreatExpectationsValidator

__all__ = ["GreatExpectationsValidator"]
