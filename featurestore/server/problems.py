"""Errors as problem details (RFC 9457) and their HTTP status codes."""

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
# The request is valid, but the store is damaged or misconfigured: the operator has to act.
_SERVER_FAULTS = (
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
    access_status = _status_of_access(error)
    if access_status is not None:
        return access_status
    if isinstance(error, errors.QueryEnded):
        return 503
    if isinstance(error, errors.LimitExceeded):
        return 413
    if isinstance(error, _CONFLICTS):
        return 409
    if isinstance(error, _SERVER_FAULTS):
        return 500
    if isinstance(error, LookupError):
        return 404
    return 422 if isinstance(error, errors.OutOfRange) else 400


def problem_details(error: FeatureStoreError) -> dict[str, Any]:
    """Return an error as a problem object with type, status, detail and hint.

    >>> problem(errors.InvalidName("'9a' is not a name.", hint="a9"))["hint"]
    'a9'
    """
    details: dict[str, Any] = {
        "type": f"urn:featurestore:{type(error).__name__}",
        "title": type(error).__name__,
        "status": status_of(error),
        "detail": error.message,
    }
    if error.hint is not None:
        details["hint"] = error.hint
    return details
