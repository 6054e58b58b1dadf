"""The lines of a log, from a file or from standard input."""

from __future__ import annotations

import io

from headgate.replay.files import LogFile


def test_standard_input_that_was_left_half_read_is_let_go_of() -> None:
    """As Ctrl-C leaves it: the interpreter then closes standard input before it finalizes the lines."""
    stdin = io.BytesIO(b"one\ntwo\n")
    with LogFile("-", stdin).lines() as lines:
        assert next(lines) == "one\n"
    stdin.close()
    del lines  # else: "Exception ignored in: <generator object", which pytest makes an error
