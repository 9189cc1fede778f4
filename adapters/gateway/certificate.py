"""
The gateway's certificate: self-signed, for loopback, and a function of a seed.

Upstream's clients send a token only over TLS, and with it a driver also knows whom it talks to: who
grabs the port while the service is down can neither read tokens nor invent claims.  The kubeconfig
carries this one certificate as the only authority.  It has no end: it is replaced with its seed.

X.509 is written here by hand, since the standard library reads it only; the signature comes from
the library that is there for the log's keys.
"""

from __future__ import annotations

import base64
from hashlib import sha1, sha256

import nkeys

__all__ = ["certificate", "private_key"]

_COMMON_NAME = b"claimlet gateway"
_DNS_NAME = b"localhost"
_ADDRESS = bytes([127, 0, 0, 1])

_SEQUENCE, _SET, _INTEGER, _BIT_STRING, _OCTET_STRING = 0x30, 0x31, 0x02, 0x03, 0x04
_UTF8, _UTC_TIME, _GENERALIZED_TIME = 0x0C, 0x17, 0x18
_TRUE = b"\x01\x01\xff"

_ED25519 = b"\x06\x03\x2b\x65\x70"
_OID_COMMON_NAME = b"\x06\x03\x55\x04\x03"
_OID_SERVER_AUTH = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01"
_OID_KEY_ID = b"\x06\x03\x55\x1d\x0e"
_OID_KEY_USAGE = b"\x06\x03\x55\x1d\x0f"
_OID_ALT_NAME = b"\x06\x03\x55\x1d\x11"
_OID_CONSTRAINTS = b"\x06\x03\x55\x1d\x13"
_OID_EXTENDED_USAGE = b"\x06\x03\x55\x1d\x25"

#: digitalSignature and keyCertSign.
_KEY_USAGE = b"\x02\x84"


def certificate(seed: bytes) -> str:
    """Return the certificate for the key of *seed* (32 bytes), as PEM."""
    pair = nkeys.from_seed(bytearray(nkeys.encode_seed(seed, nkeys.PREFIX_BYTE_USER)))
    # An encoded public key is a prefix byte, the key, and a checksum.
    public = base64.b32decode(bytes(pair.public_key))[1:33]
    algorithm = _der(_SEQUENCE, _ED25519)
    name = _der(
        _SEQUENCE,
        _der(_SET, _der(_SEQUENCE, _OID_COMMON_NAME + _der(_UTF8, _COMMON_NAME))),
    )
    # The last date is the one that means "never" (RFC 5280, 4.1.2.5).
    validity = _der(_UTC_TIME, b"200101000000Z") + _der(_GENERALIZED_TIME, b"99991231235959Z")
    signed = _der(
        _SEQUENCE,
        _der(0xA0, _der(_INTEGER, b"\x02")),
        _der(_INTEGER, b"\x01" + sha256(public).digest()[:15]),
        algorithm,
        name,
        _der(_SEQUENCE, validity),
        name,
        _der(_SEQUENCE, algorithm, _der(_BIT_STRING, b"\x00" + public)),
        _der(0xA3, _der(_SEQUENCE, *_extensions(public))),
    )
    signature = bytes(pair.sign(signed))
    whole = _der(_SEQUENCE, signed, algorithm, _der(_BIT_STRING, b"\x00" + signature))
    return _pem("CERTIFICATE", whole)


def private_key(seed: bytes) -> str:
    """Return the key of *seed* as PEM (PKCS #8)."""
    algorithm = _der(_SEQUENCE, _ED25519)
    key = _der(_OCTET_STRING, _der(_OCTET_STRING, seed))
    return _pem("PRIVATE KEY", _der(_SEQUENCE, _der(_INTEGER, b"\x00"), algorithm, key))


def _extensions(public: bytes) -> list[bytes]:
    key_id = sha1(public, usedforsecurity=False).digest()
    alternatives = _der(_SEQUENCE, _der(0x82, _DNS_NAME), _der(0x87, _ADDRESS))
    return [
        _extension(_OID_CONSTRAINTS, _der(_SEQUENCE, _TRUE), critical=True),
        _extension(_OID_KEY_USAGE, _der(_BIT_STRING, _KEY_USAGE), critical=True),
        _extension(_OID_EXTENDED_USAGE, _der(_SEQUENCE, _OID_SERVER_AUTH)),
        _extension(_OID_ALT_NAME, alternatives),
        _extension(_OID_KEY_ID, _der(_OCTET_STRING, key_id)),
    ]


def _extension(oid: bytes, value: bytes, *, critical: bool = False) -> bytes:
    flag = _TRUE if critical else b""
    return _der(_SEQUENCE, oid, flag, _der(_OCTET_STRING, value))


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _pem(label: str, data: bytes) -> str:
    text = base64.encodebytes(data).decode("ascii")
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"
