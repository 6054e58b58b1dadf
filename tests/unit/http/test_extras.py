"""A framework that is not installed: the error says what to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from importlib import import_module


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "fastapi", "flask", "django", "rest_framework", "grpc"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
for module in ("starlette", "fastapi", "flask", "django", "drf", "grpc"):
    try:
        import_module(f"headgate.http.{module}")
    except ImportError as error:
        print(error)
import headgate.http.asgi, headgate.http.wsgi
"""


def test_missing_frameworks_name_the_extra() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "headgate.http.starlette needs Starlette: pip install 'headgate[starlette]' (or 'headgate[fastapi]')",
        "headgate.http.fastapi needs FastAPI: pip install 'headgate[fastapi]'",
        "headgate.http.flask needs Flask: pip install 'headgate[flask]'",
        "headgate.http.django needs Django: pip install 'headgate[django]'",
        "headgate.http.drf needs Django REST framework: pip install 'headgate[django]' djangorestframework",
        "headgate.http.grpc needs grpcio: pip install 'headgate[grpc]'",
    ]
