"""Check the subject of a commit message: scripts/commit_subject.py FILE (a commit-msg hook)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LIMIT = 72


def problems_of(message: str) -> list[str]:
    """Return the problems of the first line of a commit message.

    >>> problems_of("Fix partition values of null keys")
    []
    >>> problems_of("fixed it.")
    ['begin with a capital letter', 'end without a period', "use the imperative: 'Fix', not 'fixed'"]
    """
    subject = message.split("\n", 1)[0]
    if re.match(r"(Merge|Revert|fixup!|squash!) ?", subject):
        return []
    problems = []
    if not subject.strip():
        problems.append("write a subject")
    if len(subject) > LIMIT:
        problems.append(f"shorten it to {LIMIT} characters; it has {len(subject)}")
    if re.match("[a-z]", subject):
        problems.append("begin with a capital letter")
    if subject.endswith("."):
        problems.append("end without a period")
    past = re.match(r"(add|fix|remov|updat|chang|renam|mov|us)(ed|ing|e?s)\b", subject, re.I)
    if past:
        verb = past[1].capitalize() + ("" if past[1].lower() in ("add", "fix") else "e")
        problems.append(f"use the imperative: '{verb}', not '{past[0]}'")
    return problems


def main() -> int:
    """Print the problems of a message file; return 1 if there are any."""
    problems = problems_of(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for problem in problems:
        print(f"commit subject: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
