"""Only the storage package opens files.

Whatever reads or writes one goes through ``featurestore.storage``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
OS_FILES = {
    "chmod", "close", "fsync", "link", "listdir", "lstat", "makedirs", "mkdir", "open", "readlink", "remove",
    "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "symlink", "truncate", "unlink", "walk",
}  # fmt: skip
OS_PATH_FILES = {
    "exists", "getatime", "getctime", "getmtime", "getsize", "isdir", "isfile", "islink", "lexists", "samefile",
}  # fmt: skip
METHODS = {
    "exists", "glob", "is_dir", "is_file", "iterdir", "mkdir", "read_bytes", "read_text", "rglob", "rmdir", "touch",
    "unlink", "write_bytes", "write_text",
}  # fmt: skip
# Variables with a storage, modules of the storage package, and Delta log functions with the same
# names.
STORAGE = ("files", "storage", "log", "deltalog", "self")
# Exceptions that open files themselves, with the reason; do not add any.
EXCEPTIONS = {
    "featurestore/cli/definitions.py": "a file that the user names",
    "featurestore/cli/features.py": "a file that the user names",
    "featurestore/cli/projects.py": "the files of a new project, and featurestore.toml",
    "featurestore/cli/doctor.py": "the path of java",
    "featurestore/config.py": "featurestore.toml, below storage in the order of packages",
    "featurestore/model/threads.py": "a limit of the system, below storage in the order of packages",
    "featurestore/model/reader_text.py": "the names of folders in the root folder",
    "featurestore/usersql/functions.py": "a file of the package",
    "featurestore/usersql/text.py": "a file of the package",
    "connectors/featurestore_connectors/duckdb_delta/tables.py": "links instead of copies of staged rows",
    "connectors/featurestore_connectors/great_expectations/pages.py": "files of the package",
    "connectors/featurestore_connectors/hdfs/storage.py": "a storage backend",
    "connectors/featurestore_connectors/spark_delta/jars.py": "the path of java",
    "connectors/featurestore_connectors/spark_delta/row_buffer.py": "temporary folders that executors read",
}


@cache
def parsed() -> dict[str, ast.Module]:
    return dict(modules())


def modules() -> Iterator[tuple[str, ast.Module]]:
    for root in ("featurestore", "connectors/featurestore_connectors"):
        for path in sorted((ROOT / root).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(("featurestore/storage/", "featurestore/testing/")):
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def calls_on_files(tree: ast.Module) -> Iterator[str]:
    """Yield the calls of a module that open, inspect or change files."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield "open"
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            owner = called.value.id
            by_os = owner == "os" and called.attr in OS_FILES
            by_method = called.attr in METHODS and owner not in STORAGE
            if by_os or by_method or owner == "shutil":
                yield f"{owner}.{called.attr}"
        elif isinstance(called, ast.Attribute) and called.attr in METHODS | OS_PATH_FILES:
            if is_storage(called.value):
                continue
            yield f"{ast.unparse(called.value)}.{called.attr}"


def is_storage(receiver: ast.expr) -> bool:
    """Return whether a call is one of ``storage_for(path)`` or ``session.storage``."""
    if isinstance(receiver, ast.Call):
        return isinstance(receiver.func, ast.Name) and receiver.func.id == "storage_for"
    return isinstance(receiver, ast.Attribute) and receiver.attr == "storage"


def test_only_storage_opens_files() -> None:
    actual = {}
    for name, tree in parsed().items():
        calls = sorted(set(calls_on_files(tree)))
        if calls and name not in EXCEPTIONS:
            actual[name] = calls
    assert actual == {}, "use featurestore.storage"


def test_storage_exceptions_are_still_needed() -> None:
    trees = parsed()
    idle = [name for name in EXCEPTIONS if not any(calls_on_files(trees[name]))]
    assert idle == []
