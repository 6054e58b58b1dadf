"""`python -m tests.docs.quickstart`: run the quickstart's Python blocks with the interpreter in HEADGATE_TEST_PYTHON.

`make dist` runs it against the wheel that it has installed in a fresh environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.conftest import TIMEOUT
from tests.docs.test_examples import BLOCK, ROOT
from tests.servers import Server, default_binary


def main() -> None:
    python = os.environ.get("HEADGATE_TEST_PYTHON", sys.executable)
    blocks = [block[2] for block in BLOCK.finditer((ROOT / "docs/quickstart.md").read_text()) if block[1] == "python"]
    with Server(default_binary()) as server, tempfile.TemporaryDirectory() as folder:
        source = "\n".join(blocks).replace("redis://localhost:6379/0", f"{server.url}?{TIMEOUT}")
        subprocess.run([python, "-c", source], cwd=folder, check=True)
    print(f"The quickstart's {len(blocks)} blocks ran with {python}.")


if __name__ == "__main__":
    main()
