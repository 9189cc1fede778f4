"""
The claims gateway: what drivers on upstream's helper need of an API server, from the log.

`server` serves it; this package itself loads no web server.
"""

from __future__ import annotations

from .claims import ClaimsView, GatewayClaim
from .credentials import Credentials, GatewayError, InvalidDriverNameError
from .limits import Limits

__all__ = [
    "ClaimsView",
    "Credentials",
    "GatewayClaim",
    "GatewayError",
    "InvalidDriverNameError",
    "Limits",
]
