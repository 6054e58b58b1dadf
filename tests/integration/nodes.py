"""What the processes of the database's tests do. Each talks with the test through one end of a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from headgate import Limiter, Rule
from headgate.db import Changes, migrate
from headgate.errors import DatabaseError
from headgate.rules.sources.database import DatabaseSource
from tests.warm import CONTEXT


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """A process that runs `target(connection, *arguments)`, and the test's end of its connection."""
    ours, theirs = CONTEXT.Pipe()
    started = CONTEXT.Process(target=target, args=(theirs, *arguments), daemon=True)
    started.start()
    theirs.close()
    try:
        yield started, ours
    finally:
        started.kill()
        started.join()
        ours.close()


def migrate_together(connection: Connection, url: str) -> None:
    """Migrate when told to; answer with what went wrong."""
    connection.send("ready")
    connection.recv()
    try:
        migrate(url)
    except Exception as error:  # noqa: BLE001 - the test shows it
        connection.send(repr(error))
    else:
        connection.send("")


def forked_node(connection: Connection, url: str) -> None:
    """The same in a forked child, and once that is told to stop, in the process that forked it."""
    source = DatabaseSource(url)
    Limiter(source).check(user="zoe")  # so that there are connections and threads
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    node(connection, url, source)


def node(connection: Connection, url: str, source: DatabaseSource | None = None) -> None:
    """A limiter that follows the database, and can change its only rule."""
    source = source or DatabaseSource(url)
    with Limiter(source) as limiter, source.changes() as changes:
        connection.send("ready")
        while True:
            what, value = connection.recv()
            if what == "stop":
                os._exit(0)
            elif what == "limit":
                with changes.begin("node") as change:
                    change.update_rule(Rule(id="r", quota=f"{value}/hour", group="plan", priority=2))
                connection.send(change.version)
            elif what == "tier":
                with changes.begin("node") as change:
                    change.set_tier("alice", value)
                connection.send(change.version)
            else:
                decision = limiter.check(user=value)
                connection.send((decision.allowed, decision.limit))


def write(connection: Connection, url: str, name: str) -> None:
    """Change rules without pause, and report each change that was acknowledged, until killed."""
    changes = Changes(url)
    number = 0
    while True:
        number += 1
        try:
            with changes.begin(name) as change:
                change.create_rule(Rule(id=f"{name}-{number}", quota=f"{number}/minute"))
                if number > 1:
                    change.update_rule(Rule(id=f"{name}-{number - 1}", quota="1000/minute"))
                if number > 2:
                    change.delete_rule(f"{name}-{number - 2}")
                change.set_tier(f"{name}-user", f"tier-{number}")
        except DatabaseError as error:
            connection.send(repr(error))
            return
        connection.send((number, change.version))
