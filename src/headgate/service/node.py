"""Node: everything behind the protocols in one process. It knows the settings, but not HTTP or gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headgate.audit.auditor import Auditor
from headgate.audit.options import AuditOptions
from headgate.audit.usage import UsageCounter
from headgate.audit.webhook import Webhook
from headgate.core.quota import MICROSECONDS
from headgate.db import Changes, Database, TokenTable, migrate
from headgate.db.changes import ChangeListener
from headgate.db.tokens import Token
from headgate.errors import DatabaseError, InvalidSettings, StoreError
from headgate.http.identity import Identity
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources import sighup
from headgate.rules.sources.database import DatabaseSource
from headgate.rules.sources.file import FileSource, load
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.directory import DataDirectory, admin_token
from headgate.service.http.authorize import API_KEY_HEADER
from headgate.service.process import freeze_new_keys
from headgate.settings import Settings, names_of
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.protocol import AsyncHeartbeatStore, AsyncStore
from headgate.stores.urls import open_async_store
from headgate.telemetry.loop_lag import measure_loop_lag
from headgate.telemetry.meter import Meter
from headgate.telemetry.metrics import Metrics
from headgate.telemetry.traces import configure_tracing, process_tracing

if TYPE_CHECKING:
    from headgate.rules.holder import Holder
    from headgate.telemetry.spans import Tracing

SAMPLES: Final = Path(__file__).with_name("samples") / "rules.toml"
PREPARE_SECONDS: Final = 2.0  # that a start waits for an optional database
LOOK_SECONDS: Final = 1.0  # between checks for new rules to save or announce, for the database, and for a failing store
KEEP_AGAIN_SECONDS: Final = 5.0  # until the next try after rules could not be saved
PROBE_SECONDS: Final = 5.0  # between probes of a store that works
TOKENS_SECONDS: Final = 30.0  # between reads of the tokens' expiry
MAX_TOKENS: Final = 100  # in the metrics

log = logging.getLogger("headgate")


class Node:
    """One process's part of the service: its rules, store, data plane and access control.

    Call `open` and `close` on one event loop, in the main thread. `worker` is the index of this process among those
    that serve together. Raises `InvalidSettings`.
    """

    source: FileSource | DatabaseSource
    meter: Meter
    limiter: AsyncLimiter
    plane: DataPlane
    metrics: Metrics

    def __init__(self, settings: Settings, *, worker: int = 0) -> None:
        self.settings = settings
        self.worker = worker
        self.draining = False
        self.directory = DataDirectory(settings.data_dir)
        self.database = _database(settings, self.directory)
        self.webhook = _webhook(settings)
        self.tokens = TokenTable(self.database, listener=self._change_listener)
        self.admin_token = admin_token(settings, self.directory)
        self.access = Access(
            admin_token=self.admin_token,
            data_token=None if settings.data_token is None else settings.data_token.get_secret_value(),
            tokens=self.tokens,
        )
        self.identity = Identity(api_key_header=API_KEY_HEADER)  # of the clients whose requests proxies ask about
        self.usage = UsageCounter()
        self.auditor = _auditor(settings, self.database, self.directory, self.usage, self.webhook)
        self.tracing = process_tracing() if settings.otlp_endpoint is None else _open_tracing(settings.otlp_endpoint)
        self._kept: Snapshot | None = None
        self._unkept = False  # whether the last attempt to save the rules failed
        self._tasks: list[asyncio.Task[None]] = []
        self._store_unseen = False
        self._expiring: list[Token] = []

    async def open(self) -> None:
        """Load the rules and get ready to decide. Raises `InvalidRule`, and `DatabaseError` if there are no rules."""
        if self.settings.rules is not None:
            self.source = FileSource(self.settings.rules, watch=True)
            self._unsubscribe = sighup.subscribe(self.source.reload_and_log)
            tried = asyncio.Event()
            self._start(self._prepare_database(tried))
            with suppress(TimeoutError):
                await asyncio.wait_for(tried.wait(), PREPARE_SECONDS)  # otherwise events would not find their tables
        else:
            self.source = await asyncio.to_thread(self._database_source)
            self._unsubscribe = sighup.subscribe(self.source.refresh)
            if self.worker == 0:
                self._start(self._keep_last_good())
        if not self.source.holder.current.rules:
            log.warning("there are no rules: every request is allowed until you add some (headgate rules apply FILE)")
        self._start(announce_slots(self.source.holder))
        self.meter = Meter(holder=self.source.holder)
        if self.tracing is not None:
            self.meter = _traced_meter(self.tracing, self.source.holder)
        self._store = _store(self.settings, self.meter)
        self.limiter = AsyncLimiter(self.source, store=self._store, region=self.settings.own_region)
        self.plane = DataPlane(self.limiter, meter=self.meter, recorder=self.auditor, usage=self.usage)
        self.auditor.start()
        if isinstance(self._store, AsyncHeartbeatStore):
            self._start(self._probe_store(self._store))
        if isinstance(self._store, AsyncMemoryStore):
            self._start(freeze_new_keys(self._store.store))
        self._start(measure_loop_lag(self.meter.loop_lags))
        self._start(self._count_usage())
        if self.worker == 0:
            self._start(self._watch_tokens())
        known = getattr(self._store, "denials", None)  # memory stores have none
        self.metrics = Metrics(
            self.meter,
            holder=self.source.holder,
            failing=self.is_store_failing,
            exhausted=None if known is None else lambda: known.hits,
            rules=self.source.status,
            database=self.source.status if isinstance(self.source, DatabaseSource) else None,
            audit=self.auditor.status,
            webhook=None if self.webhook is None else self.webhook.status,
            leases=self.limiter.leases,
            slots=self.limiter.slots,
            regions=None if self.settings.region is None else self.limiter.regions,
            rejections=lambda: self.identity.rejected,
            auth_failures=self.access.failures.counts.copy,
            token_expiry=self._token_expiry if self.worker == 0 else None,
        )

    async def close(self) -> None:
        """Save state and release all resources. Call it only when the node is no longer used."""
        self._unsubscribe()
        self.usage.rotate()
        await asyncio.to_thread(self.auditor.close)
        if self.webhook is not None:
            await asyncio.to_thread(self.webhook.close)
        await self.limiter.close()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._store.close()
        if isinstance(self.source, DatabaseSource) and self.worker == 0:
            await asyncio.to_thread(self._keep)
        await asyncio.to_thread(self.source.close)
        await asyncio.to_thread(self.database.close)
        if self.tracing is not None:
            await self.tracing.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background until `close`."""
        self._tasks.append(asyncio.create_task(work))

    @property
    def changes(self) -> Changes | None:
        """The object that changes the rules; None if they are in a file."""
        if not isinstance(self.source, DatabaseSource):
            return None
        return self.source.changes(self._change_listener)

    @property
    def _change_listener(self) -> ChangeListener | None:
        if self.webhook is None or self.settings.webhook_events == "refusals":
            return None
        return self.webhook.tell_changes

    # State for `/readyz`

    def rules_version(self) -> str | None:
        return self.source.holder.current.version

    def is_draining(self) -> bool:
        return self.draining

    def is_store_failing(self) -> bool:
        return self._store_unseen or self.limiter.failing

    def faults(self) -> Mapping[str, str]:
        faults = {}
        if self.is_store_failing():
            faults["store"] = "is failing: the rules' failure modes decide"
        if self.source.status().stale:
            faults["rules"] = f"the latest were rejected, see the log: version {self.rules_version()} stays in force"
        cut = [name for name, peer in self.limiter.regions().peers.items() if peer.cut]
        if cut:
            faults["regions"] = f"not reached: {', '.join(cut)}; synced rules keep to this region's share"
        if isinstance(self.source, DatabaseSource) and self.source.status().failing:
            faults["database"] = "does not answer: the last good rules are in force"
        if self._unkept:
            faults["data_dir"] = "rules cannot be saved: a start without the database would use older ones"
        if self.auditor.status().error is not None:
            faults["audit"] = "events wait to be written"
        return faults

    def _database_source(self) -> DatabaseSource:
        try:
            fallback = self.directory.last_good(self.database.name)
            return DatabaseSource(
                self.database, seed=load(SAMPLES) if self.settings.samples else None, fallback=fallback
            )
        except DatabaseError as error:
            raise type(error)(
                f"{error}; and {self.directory.path} has no rules of an earlier run to use meanwhile: "
                f"start the database, or set another with {names_of('database_url')}"
            ) from error

    async def _prepare_database(self, tried: asyncio.Event) -> None:
        """Create the database's tables, retrying until it can be reached. With rules in a file, only tokens and events
        need them."""
        said = False
        while True:
            try:
                await asyncio.to_thread(migrate, self.database)
            except DatabaseError as error:
                if not said:
                    log.error("tokens and events wait for the database: %s", error)  # noqa: TRY400
                said = True
            else:
                return
            finally:
                tried.set()
            await asyncio.sleep(LOOK_SECONDS)

    async def _probe_store(self, store: AsyncHeartbeatStore) -> None:
        """Notice that the store is down or back, even without checks. A single late answer does not count."""
        failures, seen = 0, False
        while True:
            try:
                await store.record_heartbeat("service", "looks", 0)  # leaves nothing in the store
            except StoreError as error:
                failures += 1
                if not self._store_unseen and (failures > 1 or not seen):
                    what = "does not answer" if seen else "cannot be reached yet"
                    log.error("the store %s: %s", what, error)  # noqa: TRY400
                    self._store_unseen = True
            else:
                if self._store_unseen:
                    log.warning("the store answers")
                failures, seen, self._store_unseen = 0, True, False
                self.limiter.store_answers()
            await asyncio.sleep(LOOK_SECONDS if failures or self.is_store_failing() else PROBE_SECONDS)

    async def _count_usage(self) -> None:
        """Close the usage counters' second at the start of every new one."""
        while True:
            await asyncio.sleep(1 - self.limiter.clock.now_us() % MICROSECONDS / MICROSECONDS)
            self.usage.tick()

    async def _watch_tokens(self) -> None:
        """Keep the expiry of tokens up to date. Known times stay valid while the database is down."""
        while True:
            with suppress(DatabaseError):  # reported elsewhere
                self._expiring = await asyncio.to_thread(self.tokens.valid_tokens, MAX_TOKENS)
            await asyncio.sleep(TOKENS_SECONDS)

    def _token_expiry(self) -> dict[str, float]:
        """Return the seconds until tokens expire, by name."""
        now_us = self.limiter.clock.now_us()
        return {token.name: (token.expires_us - now_us) / MICROSECONDS for token in self._expiring}

    async def _keep_last_good(self) -> None:
        while True:
            await asyncio.to_thread(self._keep)
            await asyncio.sleep(KEEP_AGAIN_SECONDS if self._unkept else LOOK_SECONDS)

    def _keep(self) -> None:
        """Save the database's rules to the data directory if they have changed."""
        snapshot, kept = self.source.holder.current, self._kept
        if snapshot.directory is None or (kept is not None and kept.rules is snapshot.rules):
            return  # the fallback itself, or a change of users only
        try:
            self.directory.keep(snapshot, self.database.name)
        except OSError as error:
            if not self._unkept:
                log.warning(
                    "%s cannot be written (%s); retrying. Until then, a start without the database uses older rules, "
                    "and fails if there are none",
                    *(self.directory.last_good_file, error.strerror),
                )
            self._unkept = True
            return
        if self._unkept:
            log.info("%s can be written again", self.directory.last_good_file)
        self._kept, self._unkept = snapshot, False


async def announce_slots(holder: Holder) -> None:
    """Log the rules that proxies' requests are not checked against: those at start, and those that come later."""
    announced: set[str] = set()
    snapshot: Snapshot | None = None
    while True:
        if holder.current is not snapshot:
            snapshot = holder.current
            rules = [rule.id for rule in snapshot.rules if rule.quota.ttl is not None and rule.id not in announced]
            announced.update(rules)
            if rules:
                log.warning(
                    "rules that limit concurrency (%s) do not apply to /v1/authorize and Envoy's ShouldRateLimit: "
                    "a proxy cannot report the end of a request",
                    ", ".join(rules),
                )
        await asyncio.sleep(LOOK_SECONDS)


def _database(settings: Settings, directory: DataDirectory) -> Database:
    if settings.database_url is None:
        directory.create_database()
    try:
        return Database(settings.database)
    except ValueError as error:
        raise InvalidSettings(f"{names_of('database_url')}: {error}") from error


def _webhook(settings: Settings) -> Webhook | None:
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    return Webhook(settings.webhook_url, settings.webhook_secret.get_secret_value())


def _auditor(
    settings: Settings, database: Database, directory: DataDirectory, usage: UsageCounter, webhook: Webhook | None
) -> Auditor:
    tell = None if webhook is None or settings.webhook_events == "changes" else webhook.tell_refusals
    try:
        options = AuditOptions(
            retention=settings.audit_retention,
            usage_retention=settings.usage_retention,
            usage_hourly_retention=settings.usage_hourly_retention,
        )
        return Auditor(database, directory.events, options=options, usage=usage, tell=tell)
    except ValueError as error:
        raise InvalidSettings(f"{names_of('audit_retention')}, {names_of('usage_retention')}: {error}") from error
    except OSError as error:
        raise InvalidSettings(f"{names_of('data_dir')}: {directory.events}: cannot be used: {error}") from error


def _open_tracing(endpoint: str) -> Tracing:
    try:
        return configure_tracing(endpoint)
    except (ValueError, ImportError) as error:
        raise InvalidSettings(f"{names_of('otlp_endpoint')}: {error}") from error


def _traced_meter(tracing: Tracing, holder: Holder) -> Meter:
    meter: Meter = import_module("headgate.telemetry.spans").TracedMeter(tracing, holder=holder)
    return meter


def _store(settings: Settings, meter: Meter) -> AsyncStore:
    url = settings.store_url
    try:
        return open_async_store(url, None, observer=meter)
    except (ValueError, ImportError, StoreError) as error:
        raise InvalidSettings(f"{names_of('store')}: {str(error).replace(repr(url), 'this')}") from error
