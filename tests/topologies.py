"""Servers that belong together, for tests: a master with its replica and three Sentinels; a cluster of three."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.servers import Server, Started, default_binary
from tests.waiting import until

SERVICE = "headgate"
PATIENCE = 20.0  # seconds for servers to find each other
MEMORY = "/dev/shm"  # a disk that is none
DOWN_AFTER_MS = 500  # after which a master that does not answer is replaced


@dataclass
class Sentinel(Server):
    """Watches over the server on `master_port`. It keeps what it knows in its configuration file."""

    master_port: int = 0
    settings: tuple[str, ...] = ()
    down_after_ms: int = DOWN_AFTER_MS

    def command(self, directory: str, log: Path) -> list[str]:
        file = Path(directory, "sentinel.conf")
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {directory}", f"logfile {log}"]
        lines += [
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master_port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self.down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 2000",
            *self.settings,
        ]
        file.write_text("\n".join(lines) + "\n")
        return [str(self.binary), str(file), "--sentinel"]


class SentinelTrio(Started):
    """A master, a replica and three Sentinels. Use as a context manager."""

    def __init__(self, binary: Path | None = None) -> None:
        binary = binary or default_binary()
        quick = ("--repl-diskless-sync-delay", "0")
        self.servers = [Server(binary, quick), Server(binary, quick)]
        patient = int(PATIENCE * 1_000)  # until all are there: on a busy machine, the master would be replaced before
        self.sentinels = [Sentinel(binary, master_port=self.servers[0].port, down_after_ms=patient) for _ in range(3)]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def master(self) -> Server:
        """Who is the master, by what the Sentinels say."""
        with self.sentinels[0].client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def replica(self) -> Server:
        master = self.master()
        return next(server for server in self.servers if server is not master)

    def fail_over(self) -> None:
        """Have the replica promoted. The old master is told only some ten seconds later that it is a replica."""
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def healthy(self) -> bool:
        """Whether the Sentinels know of everybody, and the replica follows."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                known = client.sentinel_master(SERVICE)
                if (known["num-slaves"], known["num-other-sentinels"], known["flags"]) != (1, 2, "master"):
                    return False
        with self.replica().client() as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    def start(self) -> None:
        for server in self.servers:
            self._stack.enter_context(server)
        with self.servers[1].client() as client:
            client.replicaof("127.0.0.1", str(self.servers[0].port))
        for sentinel in self.sentinels:
            self._stack.enter_context(sentinel)
        until(self.healthy, "three Sentinels, a master and a replica")
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER_MS)

    def __exit__(self, *exc: object) -> None:
        for server in (*self.servers, *self.sentinels):
            resume(server)
        self._stack.close()


class Cluster(Started):
    """Three masters; with `replicas`, each has one. Use as a context manager."""

    def __init__(self, *, replicas: bool = False, options: tuple[str, ...] = ()) -> None:
        binary = default_binary()
        options = (
            *("--cluster-enabled", "yes"),
            *("--cluster-node-timeout", "1000" if replicas else "5000"),  # after which the others take over, or give up
            *("--repl-diskless-sync-delay", "0"),
            *options,
        )
        # Those who elect a master wait until the disk has noted that, and so does everybody whom they serve.
        disk = MEMORY if Path(MEMORY).is_dir() else None
        self.masters, self.replicas = (
            [Server(binary, options, disk=disk) for _ in range(count)] for count in (3, 3 if replicas else 0)
        )
        self._stack = ExitStack()

    @property
    def servers(self) -> list[Server]:
        return self.masters + self.replicas

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.masters)

    def of_slot(self, slot: int) -> Server:
        """Who serves a slot."""
        for server in self.servers:
            try:
                with server.client() as client:
                    for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                        if first <= slot <= last:
                            return next(one for one in self.servers if one.port == port)
            except redis.exceptions.ConnectionError:
                continue
        raise LookupError(slot)

    def healthy(self) -> bool:
        for server in self.servers:
            with server.client() as client:
                info = client.execute_command("CLUSTER", "INFO").decode()
                if "cluster_state:ok" not in info or f"cluster_known_nodes:{len(self.servers)}\r" not in info:
                    return False
                if server in self.replicas and client.info("replication").get("master_link_status") != "up":
                    return False
        return True

    def follows(self) -> bool:
        """Whether the first replica follows its master, or the reverse after a failover."""
        for server in (self.masters[0], self.replicas[0]):
            with server.client() as client:
                if client.info("replication").get("master_link_status") == "up":
                    return True
        return False

    def node_id(self, server: Server) -> str:
        with server.client() as client:
            found: bytes = client.execute_command("CLUSTER", "MYID")
            return found.decode()

    def move(self, slot: int, to: Server) -> None:
        """Migrate a slot, key by key, as `redis-cli --cluster reshard` does."""
        source = self.of_slot(slot)
        source_id, target_id = self.node_id(source), self.node_id(to)
        with source.client() as old, to.client() as new:
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
                old.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            for client in (new, old):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def empty(self) -> None:
        for server in self.masters:
            with server.client() as client:
                client.flushall()

    def start(self) -> None:
        for server in self.servers:
            self._stack.enter_context(server)
        share = 16_384 // 3 + 1
        for number, server in enumerate(self.masters):
            with server.client() as client:
                client.execute_command(
                    "CLUSTER", "ADDSLOTSRANGE", number * share, min((number + 1) * share, 16_384) - 1
                )
        with self.masters[0].client() as client:
            for server in self.servers[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        for master, replica in zip(self.masters, self.replicas, strict=False):
            master_id = self.node_id(master)
            with replica.client() as client:
                until(lambda: client.execute_command("CLUSTER", "REPLICATE", master_id), "a replica")  # noqa: B023
        until(self.healthy, "a cluster of three")

    def __exit__(self, *exc: object) -> None:
        for server in self.servers:
            resume(server)
        self._stack.close()


def is_master(server: Server) -> bool:
    """Whether it is one by its own account."""
    with server.client() as client:
        return bool(client.execute_command("ROLE")[0] == b"master")


def calls_to(server: Server) -> int:
    """How many calls of ours a server has executed."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def kill(server: Server) -> None:
    """At once, as a machine that fails does."""
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def halt(server: Server) -> None:
    """Connections are accepted, by its kernel; nothing is ever answered."""
    os.kill(server.pid, signal.SIGSTOP)


def resume(server: Server) -> None:
    if server.running:
        os.kill(server.pid, signal.SIGCONT)
