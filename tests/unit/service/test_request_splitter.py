"""RequestSplitter: where requests begin and end, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.service.request_splitter import MAX_FIELDS, MAX_HEAD, HeadTooLarge, RequestSplitter

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 8\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"4\r\n\r\n\r\n\r\n0\r\n\r\n"  # what is in the chunk looks like its end


class Parser:
    """Does with pieces what the real one does, as far as the splitter has to know: says what requests there were."""

    def __init__(self) -> None:
        self.splitter = RequestSplitter()
        self.requests: list[bytes] = []
        self._request = b""

    def feed(self, data: bytes) -> None:
        self.splitter.feed(data)
        while piece := self.splitter.take():
            if not self._request:
                assert piece in (GET, POST, CHUNKED)
                if piece != GET:
                    self.splitter.begin_body(8 if piece == POST else None)
            self._request += piece
            assert (GET + POST + CHUNKED + CHUNKS).find(piece) >= 0 or self._request.startswith(POST)
            if self._request in (GET, POST + b"12345678", CHUNKED + CHUNKS):
                self.splitter.end()
                self.requests.append(self._request)
                self._request = b""


@given(
    st.lists(st.sampled_from((GET, POST + b"12345678", CHUNKED + CHUNKS)), max_size=6),
    st.lists(st.integers(1, 30), max_size=30),
)
def test_pieces_do_not_matter(requests: list[bytes], cuts: list[int]) -> None:
    parser, sent, at = Parser(), b"".join(requests), 0
    for cut in (*cuts, len(sent)):
        parser.feed(sent[at : at + cut])
        at += cut
    assert parser.requests == requests
    assert parser.splitter.size == 0


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE", b"uPgRaDe"])
def test_an_offer_of_another_protocol_gets_another_name(name: bytes) -> None:
    splitter = RequestSplitter()
    splitter.feed(b"GET /upgrade HTTP/1.1\r\nHost: here\r\n%b: h2c\r\nX-Upgrade-B: upgrade\r\n\r\n" % name)
    assert splitter.take() == (b"GET /upgrade HTTP/1.1\r\nHost: here\r\nx-upgrade: h2c\r\nX-Upgrade-B: upgrade\r\n\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD,
        b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MAX_FIELDS + 1) + b"\r\n",
    ],
)
def test_a_head_that_is_too_large(sent: bytes) -> None:
    splitter = RequestSplitter()
    splitter.feed(sent)
    with pytest.raises(HeadTooLarge):
        splitter.take()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n", b"get / HTTP/1.1\r\n", b"GET\r\n"])
def test_what_is_no_request_is_not_waited_for(sent: bytes) -> None:
    """But for the preface of HTTP/2, which is one until its second line."""
    splitter = RequestSplitter()
    splitter.feed(sent)
    assert splitter.take() == (b"" if sent.startswith(b"PRI") else sent)


def test_many_requests_take_as_long_as_they_are_long() -> None:
    """Nothing is copied again and again."""
    splitter = RequestSplitter()
    splitter.feed(GET * 20_000)
    copied = 0
    while piece := splitter.take():
        copied += len(piece)
        assert len(splitter._rest) in (0, len(GET) * 20_000)
    assert copied == len(GET) * 20_000
