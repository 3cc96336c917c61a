"""Each command has a line in docs/cli.md, help text and an example.

Each public call is on its reference page.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WORDS = {
    "": ["init", "doctor"],
    "fg": [
        "list",
        "show",
        "head",
        "history",
        "stats",
        "validate",
        "explain",
        "compare",
        "compact",
        "vacuum",
        "delete",
    ],
    "fv": ["list", "show", "create"],
    "model": ["list", "show", "stage"],
    "token": ["add", "list", "revoke"],
    "features": ["search", "get"],
    "td": ["create", "list", "show", "verify", "diff", "clean", "delete"],
    "job": ["register", "list", "plan", "run", "backfill", "history", "pause", "unpause"],
    "scheduler": ["start"],
    "registry": ["rebuild", "upgrade"],
    "source": ["list", "add", "check", "read"],
    "run": ["list", "show", "compare", "logs", "tensorboard"],
}
PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the full name and the object of every leaf command."""
    for name, command in group.commands.items():
        full = f"{prefix} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        elif not command.hidden:
            yield full, command


def every_command() -> dict[str, Any]:
    import typer

    from featurestore.cli import app

    return dict(commands(typer.main.get_command(app)))


def test_cli_page_lists_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [
        name
        for name in every_command()
        if f"featurestore {name}" not in page and f"`{name}" not in page
    ] == []


def test_every_command_has_help() -> None:
    assert [
        name for name, command in every_command().items() if not (command.help or "").strip()
    ] == []


def test_version_option_is_only_global() -> None:
    names = [
        name
        for name, command in every_command().items()
        for option in command.params
        if "--version" in option.opts
    ]
    assert names == []


def test_cli_has_every_expected_command() -> None:
    expected = {f"{group} {word}".strip() for group, words in WORDS.items() for word in words}
    assert expected - set(every_command()) == set()


@pytest.mark.parametrize("word", ["--location", "--engine", "--output"])
def test_cli_page_explains_global_options(word: str) -> None:
    assert word in PAGE.read_text(encoding="utf-8")


def test_reference_page_lists_every_public_call() -> None:
    import featurestore

    page = (PAGE.parent / "reference" / "store.md").read_text(encoding="utf-8")
    missing = []
    for name in featurestore._FUNCTIONS:
        if f"::: featurestore.store.FeatureStore.{name}\n" not in page + "\n":
            missing.append(name)
    assert missing == []


def test_doctest_fences_render_examples_as_code() -> None:
    pytest.importorskip("griffe")
    fenced = runpy.run_path(str(PAGE.parents[1] / "scripts" / "doctest_fences.py"))["fenced"]
    block = "```pycon\n>>> 1 + 1\n2\n```"
    assert fenced("Add.\n\n>>> 1 + 1\n2") == f"Add.\n\n{block}"
    assert fenced(f"Add.\n\n{block[9:-4]}\n\nMore.") == f"Add.\n\n{block}\n\nMore."
    assert fenced("Nothing to run.") == "Nothing to run."
