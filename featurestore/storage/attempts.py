"""Requests that are tried again: which failures pass, how long to wait, and what to say in the end.

What a server answers may hold names of keys and signatures, so nothing of it but its status and its
code goes into an error.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from featurestore.errors import StorageError

Result = TypeVar("Result")

ATTEMPTS = 6
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# The status is 4xx, and asking again brings another answer.
_PASSING_STATUS = ("408", "409", "425", "429")
_STATUS = re.compile(r"status code: (?P<status>\d{3})[ \w]*")
_CODE = re.compile(r"<Code>(?P<code>\w{1,60})</Code>")
_HINTS = {
    "401": "check the credentials: the environment, ~/.aws/credentials or storage_options=",
    "403": "check the credentials and what they allow: read, write, list and delete",
    "404": "check the name of the bucket; it has to be there",
    "301": "check the region: storage_options={'region': ...} or $AWS_REGION",
}


@dataclass(frozen=True)
class Answers:
    """How the errors of a library are understood.

    Args:
        errors: Returns the classes of errors that its requests fail with.
        passes: Tells whether a request that failed may succeed when it is sent again.
        failure: Returns the error for an action at a place that failed for good.
    """

    errors: Callable[[], tuple[type[Exception], ...]]
    passes: Callable[[BaseException], bool]
    failure: Callable[[str, str, BaseException], StorageError]


def repeated(
    action: str, place: str, call: Callable[[], Result], *, answers: Answers | None = None
) -> Result:
    """Return what a request returns that may be repeated, tried again while its failures pass.

    Args:
        action: What is done, as in "Cannot read ...".
        place: The URI of the object.
        call: Sends the request.
        answers: How its errors are understood; those of object stores, by default.

    Raises:
        FileNotFoundError: The server says so.
        StorageError: The failure is final, or did not pass.
    """
    understood = answers or _OF_OBJECTS
    attempt = 0
    while True:
        try:
            return call()
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise failure(action, place, error) from None
            raise FileNotFoundError(f"There is no {place!r}.") from None
        except StorageError:
            raise
        except understood.errors() as error:
            attempt += 1
            if attempt == ATTEMPTS or not understood.passes(error):
                raise understood.failure(action, place, error) from None
        pause(attempt)


def request_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that requests fail with."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError)


def pause(attempt: int) -> None:
    """Wait before a request is sent again, the longer the more often it failed."""
    longest = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
    time.sleep(random.uniform(0.5, 1) * longest)


def passes(error: BaseException) -> bool:
    """Tell whether a request that failed may succeed when it is sent again."""
    status = _status(error)
    if status is None:
        return not isinstance(error, PermissionError)
    return status.startswith("5") or status in _PASSING_STATUS


def failure(action: str, place: str, error: BaseException) -> StorageError:
    """Return the error for a request that failed for good."""
    status = _status(error)
    if status is None:
        reason = f"the server cannot be reached or did not answer ({type(error).__name__})"
        hint = "check the endpoint and the network: featurestore doctor"
    else:
        code = _code(error)
        reason = f"the server answered {status}"
        if code is not None:
            reason = f"{reason} ({code})"
        hint = _HINTS.get(status, "try again; nothing is lost")
    return StorageError(f"Cannot {action} {place!r}: {reason}.", hint=hint)


def _status(error: BaseException) -> str | None:
    found = _STATUS.search(str(error))
    return None if found is None else found["status"]


def _code(error: BaseException) -> str | None:
    found = _CODE.search(str(error))
    return None if found is None else found["code"]


_OF_OBJECTS = Answers(request_errors, passes, failure)
