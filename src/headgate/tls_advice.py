"""Advice for rejected TLS certificates: OpenSSL names the problem, but not the remedy."""

from __future__ import annotations

from typing import Final

# Python 3.13 and later check certificates by RFC 5280 (ssl.VERIFY_X509_STRICT), and reject some that worked before.
# Maps a part of OpenSSL's message to the extension that the certificate lacks.
_REMEDIES: Final = {
    "CA cert does not include key usage extension": "keyUsage = critical, keyCertSign, cRLSign",
    "Basic Constraints of CA cert not marked critical": "basicConstraints = critical, CA:TRUE",
    "Missing Subject Key Identifier": "subjectKeyIdentifier = hash",
    "Missing Authority Key Identifier": "authorityKeyIdentifier = keyid",
}


def advise(message: str) -> str:
    """Return OpenSSL's message and, if Python 3.13's stricter checks are the reason, how to fix the certificate."""
    for part, extension in _REMEDIES.items():
        if part in message:
            whose = "the server's certificate" if "Authority Key" in part else "the certificate of the authority (CA)"
            return f"{message}. Python 3.13 and later ask for it: issue {whose} again, with `{extension}`"
    return message
