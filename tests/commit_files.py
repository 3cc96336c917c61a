"""Commits that a test changes as another program would: without the checksums of this library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKSUMS = "featurestore.checksums"


def read_actions(file: Path) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def write_actions(file: Path, actions: Sequence[Any], *, ensure_ascii: bool = True) -> None:
    """Replace the actions of a commit; Hadoop's checksum of the old bytes is removed, too."""
    for action in actions:
        info = action.get("commitInfo") if isinstance(action, dict) else None
        if isinstance(info, dict):
            info.pop(CHECKSUMS, None)
    lines = [json.dumps(action, ensure_ascii=ensure_ascii) for action in actions]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
