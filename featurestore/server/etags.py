"""Tags of answers: who has one already is told so instead of getting it again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import Request, Response

_TAGGED = ("application/json", "text/html")


async def tag_answer(request: Request, response: Response) -> Response:
    """Return an answer with its tag, or 304 where the client named that tag.

    Streams and files are left as they are: only whole answers of the REST interface and pages are
    hashed.
    """
    from starlette.responses import Response as Whole

    kind = response.headers.get("content-type", "").split(";")[0]
    if request.method != "GET" or response.status_code != 200 or kind not in _TAGGED:
        return response
    streamed: Any = response
    body = b"".join([bytes(chunk) async for chunk in streamed.body_iterator])
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**response.headers, "etag": tag, "cache-control": "private, no-cache"}
    if _is_known(request.headers.get("if-none-match", ""), tag):
        headers.pop("content-length", None)
        return Whole(status_code=304, headers=headers)
    return Whole(body, status_code=200, headers=headers)


def _is_known(named: str, tag: str) -> bool:
    """Tell whether a header names a tag.

    >>> _is_known('"a", W/"b"', '"b"'), _is_known("*", '"b"'), _is_known("", '"b"')
    (True, True, False)
    """
    known = [each.strip().removeprefix("W/") for each in named.split(",")]
    return tag in known or "*" in known
