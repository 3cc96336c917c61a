"""Errors and retries of file operations and requests, and warnings after a publication.

Server responses may contain key names and signatures, so an error includes only their status and
error code.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from featurestore.errors import PublicationWarning, StorageError, refusal_hint
from featurestore.model.arguments import warn_caller
from featurestore.storage.location import scheme_of

Result = TypeVar("Result")

ATTEMPTS = 8
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# Client errors (4xx) after which a retry may succeed.
_TRANSIENT_STATUSES = ("408", "409", "425", "429")
_STATUS = re.compile(r"status code: (?P<status>\d{3})[ \w]*")
_CODE = re.compile(r"<Code>(?P<code>\w{1,60})</Code>")
_MISSING_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")
_HINTS = {
    "401": "check the credentials: {credentials} or storage_options=",
    "403": "check the credentials and their permissions: read, write, list and delete",
    "404": "check the name of the bucket; it must exist",
    "301": "check the region: storage_options={{'region': ...}} or $AWS_REGION",
}
# The address at which cloud machines provide the credentials of their identity.
_IDENTITY_SERVICE = "169.254.169.254"
# Where the credentials of each scheme come from.
_CREDENTIALS = {
    "gs": "$GOOGLE_APPLICATION_CREDENTIALS, the account of the machine",
    "az": "$AZURE_STORAGE_ACCOUNT_KEY, the identity of the machine",
}


@contextmanager
def translate_write_errors(path: str) -> Iterator[None]:
    """Raise StorageError, with the reason, for an OSError in the block that writes ``path``."""
    try:
        yield
    except StorageError:
        # StorageError is also an OSError, and already has its reason.
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot write {path!r}: {error.strerror or error}.",
            hint=refusal_hint(error) or "check free space and permissions",
        ) from error


@contextmanager
def translate_read_errors(path: str) -> Iterator[None]:
    """Raise StorageError, with the reason, for an OSError in the block that reads ``path``."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot read {path!r}: {error.strerror or error}.", hint=refusal_hint(error)
        ) from error


@contextmanager
def warn_after_publication(subject: str) -> Iterator[None]:
    """Turn an error in the block into a warning that ``subject`` was published.

    An error would make the caller repeat a write that has already succeeded.
    """
    try:
        yield
    except Exception as error:
        warn_published(subject, error)


def warn_published(subject: str, error: BaseException) -> None:
    """Warn that ``subject`` was published but a later step failed."""
    # The first line only, without the hint, which may advise to repeat the write.
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    warn_caller(
        f"{subject} became visible, but a later step failed: {reason} Recovery completes the "
        "remaining steps; do not repeat the write.",
        PublicationWarning,
    )


@dataclass(frozen=True)
class RetryPolicy:
    """How to handle the errors of a client library.

    Args:
        errors: Returns the error classes that its requests raise.
        is_transient: Returns True if a retry of the failed request may succeed.
        to_error: Returns the error to raise after a permanent failure of an action on an object.
    """

    errors: Callable[[], tuple[type[Exception], ...]]
    is_transient: Callable[[BaseException], bool]
    to_error: Callable[[str, str, BaseException], StorageError]


def with_retries(
    action: str, uri: str, call: Callable[[], Result], *, policy: RetryPolicy | None = None
) -> Result:
    """Send an idempotent request and retry it after transient failures.

    Args:
        action: The verb for the error message "Cannot <action> ...".
        uri: The URI of the object.
        call: Sends the request and returns its result.
        policy: How to handle errors; by default those of object stores.

    Raises:
        FileNotFoundError: The server reports a missing object.
        StorageError: The failure is permanent, or all attempts failed.
    """
    policy = policy or _OBJECT_STORES
    attempt = 0
    while True:
        try:
            return call()
        except FileNotFoundError as error:
            # A missing bucket is also reported as not found, but it is an error of the
            # configuration and not a missing object.
            if _error_code(error) in _MISSING_BUCKET_CODES:
                raise to_storage_error(action, uri, error) from None
            # The cause is not chained, since its text may contain key names and signatures.
            raise FileNotFoundError(f"{uri!r} does not exist.") from None
        except StorageError:
            raise
        except policy.errors() as error:
            attempt += 1
            if attempt == ATTEMPTS or not policy.is_transient(error):
                raise policy.to_error(action, uri, error) from None
        wait_before_retry(attempt)


def request_errors() -> tuple[type[Exception], ...]:
    """Return the error classes that requests to object stores raise."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError)


def wait_before_retry(attempt: int) -> None:
    """Wait before a retry, longer after each attempt."""
    # Random, so that clients that failed together do not retry together.
    longest = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
    time.sleep(random.uniform(0.5, 1) * longest)


def is_transient(error: BaseException) -> bool:
    """Return True if a retry of the failed request may succeed."""
    status = _status_code(error)
    # Without a status there was no response: the connection failed or timed out.
    if status is None:
        return not isinstance(error, PermissionError)
    return status.startswith("5") or status in _TRANSIENT_STATUSES


def to_storage_error(action: str, uri: str, error: BaseException) -> StorageError:
    """Return the error to raise for a request that failed permanently."""
    status = _status_code(error)
    credentials = _CREDENTIALS.get(scheme_of(uri), "the environment, ~/.aws/credentials")
    if _IDENTITY_SERVICE in str(error):
        # Without configured credentials, clients request those of the machine.
        reason = "no credentials are configured, and the machine's identity service has none"
        hint = _HINTS["401"].format(credentials=credentials)
    elif status is None:
        reason = f"the server cannot be reached or did not respond ({type(error).__name__})"
        hint = "check the endpoint and the network: featurestore doctor"
    else:
        code = _error_code(error)
        reason = f"the server returned status {status}"
        if code is not None:
            reason = f"{reason} ({code})"
        hint = _HINTS.get(status, "try again; nothing is lost").format(credentials=credentials)
    return StorageError(f"Cannot {action} {uri!r}: {reason}.", hint=hint)


def _status_code(error: BaseException) -> str | None:
    match = _STATUS.search(str(error))
    return None if match is None else match["status"]


def _error_code(error: BaseException) -> str | None:
    match = _CODE.search(str(error))
    return None if match is None else match["code"]


_OBJECT_STORES = RetryPolicy(request_errors, is_transient, to_storage_error)
