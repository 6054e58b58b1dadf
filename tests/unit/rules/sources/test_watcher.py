"""The watcher looks when something has changed, keeps looking without notifications, and stops when told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgate.rules.sources import watcher as module
from headgate.rules.sources.watcher import Watcher


def test_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ImportError, match=r"pip install 'headgate\[watch\]'"):
        Watcher(tmp_path / "rules.toml", lambda: None)


def test_it_watches_where_a_link_is_and_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[set[Path]] = []

    def watch(*directories: Path, stop_event: threading.Event, **options: object) -> Iterator[set[str]]:
        assert options["recursive"] is False
        watched.append(set(directories))
        stop_event.wait(10)
        yield from ()

    monkeypatch.setitem(sys.modules, "watchfiles", SimpleNamespace(watch=watch))
    real = tmp_path / "real"
    real.mkdir()
    (real / "rules.toml").write_text("")
    link = tmp_path / "rules.toml"
    link.symlink_to(real / "rules.toml")
    Watcher(link, lambda: None).close()
    assert watched == [{tmp_path, real}]


def test_without_notifications_it_goes_on_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = threading.Semaphore(0)

    def watch(*_: object, **__: object) -> Iterator[set[str]]:
        raise OSError("no space left on device")

    monkeypatch.setitem(sys.modules, "watchfiles", SimpleNamespace(watch=watch))
    monkeypatch.setattr(module, "POLL_MS", 1)
    watcher = Watcher(tmp_path / "rules.toml", looked.release)
    for _ in range(3):
        assert looked.acquire(timeout=10)
    watcher.close()
    assert caplog.text.count("no notifications of changes (no space left on device)") == 1


def test_it_stops_and_waits_until_it_has(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    watcher = Watcher(tmp_path / "rules.toml", lambda: None)
    (thread,) = set(threading.enumerate()) - before
    watcher.close()
    assert not thread.is_alive()
    watcher.close()
