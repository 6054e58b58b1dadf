"""Sessions: an hour idle, renewed by use, and nobody else's."""

from __future__ import annotations

from headgate.console.sessions import COOKIE, Session, Sessions
from headgate.testing import FakeClock


def cookie_of(sessions: Sessions, session: Session) -> str:
    return sessions.header(session, "/console").removeprefix(f"{COOKIE}=").partition(";")[0]


def test_a_session_ends_after_an_hour_without_a_request() -> None:
    clock = FakeClock(1_700_000_000.0)
    sessions = Sessions("secret", clock, secure=False)
    session = sessions.begin("digest")
    cookie = cookie_of(sessions, session)
    clock.advance(3_599)
    assert sessions.read(cookie) == session
    clock.advance(1)
    assert sessions.read(cookie) is None


def test_use_renews_a_session_after_a_minute() -> None:
    clock = FakeClock(1_700_000_000.0)
    sessions = Sessions("secret", clock, secure=False)
    session = sessions.begin("digest")
    assert sessions.renew(session) is None
    clock.advance(60)
    renewed = sessions.renew(session)
    assert renewed is not None
    clock.advance(3_590)
    assert sessions.read(cookie_of(sessions, renewed)) == renewed


def test_only_who_knows_the_secret_can_make_a_cookie() -> None:
    clock = FakeClock(1_700_000_000.0)
    ours, theirs = Sessions("ours", clock, secure=False), Sessions("theirs", clock, secure=False)
    session = theirs.begin("digest")
    assert ours.read(cookie_of(theirs, session)) is None
    assert not ours.is_csrf(session, theirs.csrf(session))
    assert ours.is_csrf(session, ours.csrf(session))
    assert not ours.is_csrf(session, ours.csrf(ours.begin("digest")))


def test_under_tls_a_cookie_is_secure() -> None:
    sessions = Sessions("secret", FakeClock(0.0), secure=True)
    assert sessions.header(sessions.begin("digest"), "/console").endswith("HttpOnly; SameSite=Strict; Secure")
