"""Messages about certificates that Python 3.13 rejects, and Python 3.12 does not."""

from __future__ import annotations

import pytest

from headgate.tls_advice import advise


@pytest.mark.parametrize(
    ("message", "whose", "extension"),
    [
        (
            "CA cert does not include key usage extension",
            "the authority (CA)",
            "keyUsage = critical, keyCertSign, cRLSign",
        ),
        (
            "Basic Constraints of CA cert not marked critical",
            "the authority (CA)",
            "basicConstraints = critical, CA:TRUE",
        ),
        ("Missing Authority Key Identifier", "the server's certificate", "authorityKeyIdentifier = keyid"),
    ],
)
def test_a_certificate_that_only_new_pythons_reject_comes_with_a_remedy(
    message: str, whose: str, extension: str
) -> None:
    advised = advise(f"certificate verify failed: {message} (_ssl.c:1020)")
    assert advised.startswith("certificate verify failed: ")
    assert "Python 3.13" in advised
    assert whose in advised
    assert extension in advised


def test_any_other_message_stays_as_it_is() -> None:
    assert advise("self-signed certificate in certificate chain") == "self-signed certificate in certificate chain"
