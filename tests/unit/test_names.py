"""A class name means one thing in the whole tree, and no module is too long to read."""

import ast
from collections import defaultdict
from pathlib import Path

MAX_LINES = 400
SOURCE = Path(__file__).parent.parent.parent / "src/headgate"
GENERATED = ("_pb2.py",)
# Documents of the admin API are named after what they show: a rule, a user, a token.
DOCUMENTS = "service/admin/models.py"
# The same thing again: an interface and its implementation, or one thing for several servers.
SHARED = {"Fleet", "RateLimitMiddleware", "Refused", "Reserved"}


def classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name == DOCUMENTS or name.endswith(GENERATED):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    return found


def test_a_class_name_means_one_thing() -> None:
    twice = {name: paths for name, paths in classes().items() if len(paths) > 1 and name not in SHARED}
    assert not twice


def test_a_sync_module_has_the_async_one_beside_it() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.read_text().startswith("# Generated from async_"):
            assert path.with_name(f"async_{path.name}").exists()


def test_no_module_is_too_long() -> None:
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text().splitlines())
        for path in SOURCE.rglob("*.py")
        if not path.name.endswith(GENERATED)
    }
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert not long, f"split by meaning: over {MAX_LINES} lines"
