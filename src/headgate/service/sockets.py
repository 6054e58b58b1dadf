"""Sockets to listen on, and the errors when an address is not available."""

from __future__ import annotations

import errno
import socket
from typing import Final

from headgate.errors import HeadgateError
from headgate.settings import flag, names_of, variable
from headgate.settings_fields import Address

ANY: Final = "::"


class CannotListen(HeadgateError):
    """An address is not available: it is taken, or is not this machine's."""


def bind(address: Address, setting: str, *, shared: bool = False) -> list[socket.socket]:
    """Return sockets bound to an address: several if its name has several addresses. Raises `CannotListen`.

    `shared` lets other `shared` sockets bind the same address, in this process or another.
    """
    try:
        endpoints = _endpoints(address)
    except OSError as error:
        raise CannotListen(f"{names_of(setting)}: {address.host!r} is not known: {error.strerror}") from error
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, host in endpoints:
            sockets.append(_bind(family, host, port, shared=shared))
            port = sockets[0].getsockname()[1]  # if the port is 0, use one port for all
    except OSError as error:
        close(sockets)
        raise _refusal(error, address, setting) from error
    return sockets


def reserve(address: Address, setting: str) -> tuple[list[socket.socket], Address]:
    """Return sockets that reserve an address for our workers to share, and the address with its port.

    It first checks that no other process listens there: a shared socket alone could join another program's.
    """
    alone = bind(address, setting)
    actual = Address(address.host, alone[0].getsockname()[1])
    close(alone)
    return bind(actual, setting, shared=True), actual


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _endpoints(address: Address) -> list[tuple[int, str]]:
    if address.host == ANY:
        return [(socket.AF_INET6, ANY)] if socket.has_dualstack_ipv6() else [(socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((int(family), str(endpoint[0])) for family, _, _, _, endpoint in found))


def _bind(family: int, host: str, port: int, *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != ANY))
        made.bind((host, port))
        if not shared:
            made.listen(1)  # two sockets can bind one address, until one of them listens
    except OSError:
        made.close()
        raise
    return made


def _refusal(error: OSError, address: Address, setting: str) -> CannotListen:
    other = Address(address.host, address.port + 1000 if address.port < 64_000 else 0)
    choose = f"choose another with {flag(setting)} {other} (or {variable(setting)})"
    if error.errno == errno.EADDRINUSE:
        return CannotListen(f"port {address.port} is taken: another program listens on {address}; {choose}")
    if error.errno == errno.EACCES:
        return CannotListen(f"port {address.port} is not for ordinary users; {choose}")
    if error.errno == errno.EADDRNOTAVAIL:
        return CannotListen(f"{address.host} is not an address of this machine; {choose}")
    return CannotListen(f"cannot listen on {address}: {error.strerror}; {choose}")
