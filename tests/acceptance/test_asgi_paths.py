"""No spelling of a path reaches a handler without being counted by the rule for it."""

from __future__ import annotations

from http.client import HTTPConnection
from itertools import product
from urllib.parse import urlsplit

FIRST = ("exact", "one", "files", "o%6ee", "", "..", "skipped")
SECOND = (
    *("", ".", "..", "%2e", "%2E%2e", "%252e%252e", "x", "%2F", "..%2f", "%3F", "?", "%23", "#"),
    *(";v=1", "%00", "%ff", "\xff", "%C0%AF", "..\\", "exact", "one"),
)
THIRD = (None, "", "..", "skipped", "%2e%2e")


class RawConnection(HTTPConnection):
    """Sends a path as it is."""

    def _validate_path(self, url: str) -> None: ...

    def _encode_request(self, request: str) -> bytes:
        return request.encode("latin-1")


def spellings(thirds: tuple[str | None, ...]) -> list[str]:
    paths = [f"/{first}" for first in FIRST]
    for parts in product(FIRST, SECOND, thirds):
        paths.append("/" + "/".join(part for part in parts if part is not None))
    return [*paths, "//one//x", "/./one/x", "/x/../one/x", "/one/./x", "/one/x/.", "/one/x/../y", "*", "one/x"]


def test_whoever_reaches_the_handler_was_counted(served: str, user: str, thorough: bool) -> None:
    reached, missed = 0, []
    connection = RawConnection(urlsplit(served).netloc, timeout=60)
    for path in [*spellings(THIRD if thorough else (None, "..")), f"{served}/one/x", f"{served}/one/.."]:
        try:
            connection.request("GET", path, headers={"X-User": user})
            response = connection.getresponse()
            body = response.read()
        except OSError:
            connection.close()  # the server did not care for that one
            continue
        assert response.status < 500, path
        if body == b"narrow":
            reached += 1
            if '"narrow"' not in (response.headers["RateLimit-Policy"] or ""):
                missed.append(path)
    connection.close()
    assert missed == []
    assert reached > (100 if thorough else 30)
