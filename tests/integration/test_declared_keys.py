"""Scripts touch only keys that they declare: managed services and proxies in front of Redis depend on it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate import RateLimited
from tests.integration.limiters import AnyLimiter, Open
from tests.integration.test_prefix import PREFIX, exercise, use
from tests.servers import Server

END = "no more commands"
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')  # of a command, as MONITOR quotes it


@contextmanager
def monitored(server: Server) -> Iterator[list[list[str]]]:
    """The commands that a server has executed when the block ends. Those of scripts begin with `lua`."""
    commands: list[list[str]] = []
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"MONITOR\r\n")
        lines = connection.makefile(encoding="utf-8", errors="replace")
        assert lines.readline() == "+OK\n"
        yield commands
        with server.client() as client:
            client.echo(END)
        for line in lines:
            command = [*(["lua"] if " lua] " in line else []), *WORD.findall(line)]
            if command[-1] == END:
                return
            commands.append(command)


def undeclared(commands: list[list[str]]) -> list[str]:
    """The commands of scripts that name a key which the call of the script does not declare."""
    found, declared, scripts = [], set(), 0
    for command in commands:
        if command[0] != "lua":
            is_script = command[0] in ("EVAL", "EVALSHA")
            declared = set(command[3 : 3 + int(command[2])]) if is_script else set()
            scripts += is_script
        elif len(command) > 2 and command[2] not in declared:
            found.append(" ".join(command))
    assert scripts > 20
    return found


def take_slots(limiter: AnyLimiter) -> None:
    slot = use(limiter, "acquire", "alice")
    assert use(limiter, "renew", slot.id)
    with pytest.raises(RateLimited):
        use(limiter, "acquire", "alice", wait=0.05)
    assert use(limiter, "release", slot.id)


def test_scripts_touch_only_keys_that_they_declare(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    with monitored(redis_server) as commands:
        exercise(open_limiter, f"{redis_url}&prefix={PREFIX}")
        take_slots(open_limiter("1 concurrent; 100/day", store=f"{redis_url}&prefix={PREFIX}"))
        open_limiter.close()
    assert undeclared(commands) == []
    assert undeclared([*commands, ["EVALSHA", "digest", "1", "key"], ["lua", "GET", "other"]]) == ["lua GET other"]
