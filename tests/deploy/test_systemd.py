"""The systemd unit, read by systemd itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.webserver import ROOT

UNIT = ROOT / "deploy/systemd/headgate.service"


def test_unit_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is needed: apt-get install systemd"
    text = UNIT.read_text()
    assert "ExecStart=/opt/headgate/bin/headgate serve\n" in text
    copy = tmp_path / "headgate.service"  # it wants the program to be there
    copy.write_text(text.replace("/opt/headgate/bin/headgate", str(Path(sys.executable).with_name("headgate"))))
    verified = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
