"""Errors as problem details (RFC 9457), for programs, and the status that each kind has."""

from __future__ import annotations

from typing import Any

from featurestore import errors
from featurestore.errors import FeatureStoreError

MEDIA_TYPE = "application/problem+json"
_CONFLICTS = (
    errors.FeatureGroupExists,
    errors.TrainingDatasetExists,
    errors.FeatureViewExists,
    errors.PinnedByTrainingDataset,
    errors.UsedByFeatureView,
    errors.JobLeased,
    errors.UserExists,
    errors.WriteConflict,
)
# What was asked is fine and the store cannot answer: whoever runs it has to look.
_OF_THE_STORE = (
    errors.EngineError,
    errors.StorageError,
    errors.RegistryError,
    errors.DatasetDamaged,
    errors.FeatureViewDamaged,
    errors.MissingExtra,
    errors.MissingJava,
)


def _status_of_access(error: FeatureStoreError) -> int | None:
    if isinstance(error, errors.TooManyAttempts):
        return 429
    if isinstance(error, errors.NotSignedIn):
        return 401
    return 403 if isinstance(error, errors.NotAllowed) else None


def status_of(error: FeatureStoreError) -> int:
    """Return the HTTP status of an error.

    >>> status_of(errors.FeatureGroupNotFound("no such group")), status_of(errors.InvalidSql("?"))
    (404, 400)
    """
    refused = _status_of_access(error)
    if refused is not None:
        return refused
    if isinstance(error, errors.QueryEnded):
        return 503
    if isinstance(error, errors.LimitExceeded):
        return 413
    if isinstance(error, _CONFLICTS):
        return 409
    if isinstance(error, _OF_THE_STORE):
        return 500
    if isinstance(error, LookupError):
        return 404
    return 422 if isinstance(error, errors.OutOfRange) else 400


def problem(error: FeatureStoreError) -> dict[str, Any]:
    """Return an error as a problem object: its kind, what was asked, and what to do.

    >>> problem(errors.InvalidName("'9a' is no name.", hint="a9"))["hint"]
    'a9'
    """
    found: dict[str, Any] = {
        "type": f"urn:featurestore:{type(error).__name__}",
        "title": type(error).__name__,
        "status": status_of(error),
        "detail": error.message,
    }
    if error.hint is not None:
        found["hint"] = error.hint
    return found
