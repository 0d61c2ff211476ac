"""What can go wrong. The names and the fields are those of OpenAI's Python package."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Optional, Type

if TYPE_CHECKING:
    from .client import Job


class TroupeError(Exception):
    """The base of all errors of this package. `message` is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class APIConnectionError(TroupeError, ConnectionError):
    """The server cannot be reached, or the connection broke."""


class APITimeoutError(APIConnectionError, TimeoutError):
    """The server was silent, or something has not ended, for as long as one was willing to wait."""


class APIStatusError(TroupeError):
    """The server refused a request, or failed at it.

    `status_code` is HTTP's; `type`, `param` (the field of the request that is wrong) and `code` (a code of
    `troupe::Error`) are the server's, or None.
    """

    def __init__(self, message: str, status_code: int, type: Optional[str] = None, param: Optional[str] = None,
                 code: Optional[str] = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.type = type
        self.param = param
        self.code = code


class BadRequestError(APIStatusError, ValueError):
    """A field of the request is wrong: `param` names it."""


class AuthenticationError(APIStatusError):
    """The key is missing or wrong."""


class PermissionDeniedError(APIStatusError):
    """The key does not allow this."""


class NotFoundError(APIStatusError):
    """No such job, picture or model; with `status_code` 410 there was one, and it is gone."""


class ConflictError(APIStatusError):
    """The job's state does not allow this, as to cancel one that has ended."""


class RateLimitError(APIStatusError):
    """The queue is full; try again later."""


class InternalServerError(APIStatusError):
    """The server, or the cluster behind it, failed."""


class JobError(TroupeError):
    """A job ended without its pictures. `job` is its handle, as for `job.logs()`."""

    def __init__(self, message: str, job: "Job") -> None:
        super().__init__(message)
        self.job = job


class JobFailedError(JobError):
    """The job failed; the message is its cause."""


class JobCancelledError(JobError):
    """The job was cancelled, here or by somebody else."""


class TroupeWarning(UserWarning):
    """What a job's pictures show that its request may not mean, as that a prompt was cut."""


def outside() -> int:
    """The `stacklevel` with which the caller's warning points at the code that uses this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    return level


_BY_STATUS: Dict[int, Type[APIStatusError]] = {
    400: BadRequestError, 401: AuthenticationError, 403: PermissionDeniedError, 404: NotFoundError,
    409: ConflictError, 410: NotFoundError, 413: BadRequestError, 422: BadRequestError, 429: RateLimitError,
}


def from_response(status: int, document: Any, reason: str) -> APIStatusError:
    """The exception for an answer of this status, whose body is OpenAI's error (or something else)."""
    error = document.get("error") if isinstance(document, dict) else None
    fields = error if isinstance(error, dict) else {}
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(fields.get("message") or f"the server answered {status} {reason}", status, fields.get("type"),
                fields.get("param"), fields.get("code"))
