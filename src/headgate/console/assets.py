"""Assets: the package's scripts and styles, compressed once."""

from __future__ import annotations

import gzip
from hashlib import sha256
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    kind: str
    content: bytes
    compressed: bytes
    etag: str


class Assets:
    """All files of `static/`, by their paths below it."""

    def __init__(self) -> None:
        self._found: dict[str, Asset] = {}
        static = files("headgate.console") / "static"
        for folder, prefix in ((static, ""), (static / "vendor", "vendor/")):
            for file in folder.iterdir():
                kind = TYPES.get(f".{file.name.rpartition('.')[2]}")
                if kind is not None and file.is_file():
                    content = file.read_bytes()
                    etag = f'"{sha256(content).hexdigest()[:20]}"'
                    asset = Asset(f"{kind}; charset=utf-8", content, gzip.compress(content, 9, mtime=0), etag)
                    self._found[prefix + file.name] = asset

    def response(self, path: str, headers: Headers) -> Response:
        """Return the file, or 304 if the browser has it."""
        asset = self._found.get(path)
        if asset is None:
            return PlainTextResponse("There is no such file.\n", 404)
        fields = {
            "etag": asset.etag,
            "cache-control": "public, max-age=300, must-revalidate",
            "vary": "Accept-Encoding",
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-origin",
        }
        if headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=fields)
        if "gzip" in headers.get("accept-encoding", ""):
            return Response(asset.compressed, media_type=asset.kind, headers=fields | {"content-encoding": "gzip"})
        return Response(asset.content, media_type=asset.kind, headers=fields)
