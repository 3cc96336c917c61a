"""Files are opened in one package: whatever reads or writes one goes through ``featurestore.storage``."""

from __future__ import annotations

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
