"""
Refusals as Kubernetes says them: a `Status` object with a code, a reason and one clear message.

Upstream's clients act on the reason: after a `NotFound` they try older API versions, after an
`Expired` they list again, after a `Conflict` they read and write again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["ApiError", "status_body"]

_REASONS: dict[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


class ApiError(Exception):
    """An answer that says no; `code` is the HTTP status."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or _REASONS.get(code, "InternalError")
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the `Status` object."""
        return status_body(self.code, str(self), reason=self.reason)


def status_body(code: int, message: str, *, reason: str = "") -> bytes:
    """Return a failed `Status` object as JSON."""
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS.get(code, "InternalError"),
            "code": code,
        }
    )
