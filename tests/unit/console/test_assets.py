"""Vendored assets are the files of the npm packages that assets.toml names."""

from __future__ import annotations

import subprocess
import sys

from starlette.datastructures import Headers

from headgate.console.assets import Assets
from tests.service import ROOT


def test_vendored_files_have_the_hashes_that_the_list_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "console-assets"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_assets_are_compressed_for_those_who_can_and_known_by_their_etag() -> None:
    assets = Assets()
    plain = assets.response("console.js", Headers())
    small = assets.response("console.js", Headers({"accept-encoding": "gzip"}))
    assert (small.headers["content-encoding"], len(small.body) < len(plain.body) / 2) == ("gzip", True)
    again = assets.response("console.js", Headers({"if-none-match": plain.headers["etag"]}))
    assert (again.status_code, again.body) == (304, b"")
    assert assets.response("../app.py", Headers()).status_code == 404
