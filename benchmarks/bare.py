"""Calls by a client that does nothing: it sends commands that were packed before, and reads what comes back.

What is left is what the servers cost, and the kernel: no client is cheaper, whatever it is written in.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import cycle
from time import perf_counter
from typing import NamedTuple

from headgate import Quota
from headgate.core.key import DEFAULT_PREFIX, key, key_template
from headgate.stores.redis import script
from headgate.stores.redis.encoding import CommandTemplate, EncodedRequest
from headgate.stores.redis.topology import SLOTS, slot_of_key
from tests.servers import Server

LINES = 3  # that a check takes of a reply; the reply itself two
CHUNK = 65_536


class Call(NamedTuple):
    """A command on its way to a server."""

    link: socket.socket
    command: bytes
    lines: int  # of its reply


def calls_to(
    servers: list[Server], quota: Quota, batches: Iterable[list[str]], stack: ExitStack
) -> Callable[[float], int]:
    """Checks batch after batch of subjects for so many seconds, in a call to each server; returns how many it did."""
    by_slot = len(servers) > 1  # a command names keys of one slot
    text = script.with_text(_command(["any"], quota))[1]
    for server in servers:
        with server.client() as client:
            client.script_load(text)
    links = {server.port: stack.enter_context(_link(server)) for server in servers}
    owners = _owners(servers)
    prepared = cycle([_calls(batch, quota, owners, links, by_slot=by_slot) for batch in batches])

    def checks(seconds: float) -> int:
        until, count = perf_counter() + seconds, 0
        while perf_counter() < until:
            calls = next(prepared)
            for call in calls:
                call.link.send(call.command)
            for call in calls:
                _read(call)
                count += call.lines // LINES
        return count

    return checks


def in_batches(subjects: list[str], size: int) -> Iterator[list[str]]:
    """Whole ones only."""
    return (subjects[at : at + size] for at in range(0, len(subjects) - size + 1, size))


def _link(server: Server) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _owners(servers: list[Server]) -> list[int]:
    """The port of who has each slot."""
    if len(servers) == 1:
        return [servers[0].port] * SLOTS
    owners = [0] * SLOTS
    with servers[0].client() as client:
        for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
            owners[first : last + 1] = [port] * (last + 1 - first)
    return owners


def _calls(
    batch: list[str], quota: Quota, owners: list[int], links: dict[int, socket.socket], *, by_slot: bool
) -> list[Call]:
    where = key_template("subject", "default", quota.algorithm)
    commands: dict[int, list[str]] = {}
    for name in [key(where, subject) for subject in batch]:
        commands.setdefault(slot_of_key(name) if by_slot else 0, []).append(name)
    by_port: dict[int, list[list[str]]] = {}
    for slot, keys in commands.items():
        by_port.setdefault(owners[slot], []).append(keys)
    return [
        Call(
            links[port],
            b"".join(script.encode_command(_command(keys, quota)) for keys in pipelined),
            sum(2 + LINES * len(keys) for keys in pipelined),
        )
        for port, pipelined in by_port.items()
    ]


def _command(keys: list[str], quota: Quota) -> script.Command:
    requests = [EncodedRequest((f"{DEFAULT_PREFIX}:{name}",), (1,)) for name in keys]
    return CommandTemplate(((quota, True),)).command(requests, None)


def _read(call: Call) -> None:
    reply = call.link.recv(CHUNK)
    while reply.count(b"\r\n") < call.lines:
        if not reply.startswith(b"*"):
            raise RuntimeError(f"it did not decide as it should: {reply!r}")
        more = call.link.recv(CHUNK)
        if not more:
            raise RuntimeError("the server closed the connection")
        reply += more
