"""CI runs the commands of the front pages, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/index.md", "docs/install.md", "CONTRIBUTING.md")
# Commands among the words and names in inline code.
COMMAND = re.compile(
    r"make( .+)?|(pip|featurestore|python|docker) .+|scripts/[\w-]+(\.py)?( .+)?|\.(venv|ci)/.+"
)
# Commands that CI does not run in this form, with the reason.
NOT_IN_CI = {
    "make": "a test runs it",
    "make check": "a part of make test",
    "make test-services": "a part of make test",
    "make results": "a test of make test compares the page with the figures",
    "make soak": "hours",
    ".ci/run": "CI itself",
    ".venv/bin/pytest tests/readers -k order": "a part of make test",
    ".venv/bin/pre-commit install -t pre-commit -t commit-msg": "it changes the checkout",
    "scripts/house.py --write": "it changes the figures that make lint compares",
    "scripts/house.py": "a part of make lint",
    "scripts/calls.py": "a part of make lint",
    "scripts/calls.py --list create": "make lint measures the same call",
    "scripts/prose.py": "a part of make docs",
    "scripts/spark-environment": "a part of the step of the newest Spark",
    "scripts/demo_picture.py": "it changes the pictures of the page",
    "featurestore apply features/": "tests/pages runs the page of projects in git",
    "featurestore dbt import": "tests/pages runs the page of dbt",
    "featurestore serve": "tests/pages runs the page of the server",
    # The package has no release yet: make test-wheel installs its wheel.
    "pip install featurestore": "make test-wheel",
    "pip install 'featurestore[tensorflow,pandas]'": "make test-wheel",
    "pip install 'featurestore[plots]'": "make test-wheel",
    "pip install -c constraints.txt 'featurestore[all]'": "make setup installs these versions",
}


def commands_of_page(text: str) -> set[str]:
    """Return the commands in inline code and bash blocks, without comments."""
    commands = set()
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        commands |= {line.partition(" #")[0].strip() for line in block.splitlines()}
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    commands |= set(filter(COMMAND.fullmatch, re.findall(r"`([^`]+)`", outside)))
    return {command for line in commands if line for command in split_targets(line)}


def split_targets(command: str) -> list[str]:
    """Return a call of make for each target, or the command itself."""
    program, *words = command.split()
    targets = [word for word in words if "=" not in word and not word.startswith("-")]
    settings = [word for word in words if "=" in word]
    if program != "make" or not targets:
        return [command]
    return [" ".join([program, target, *settings]) for target in targets]


def commands_of_ci(text: str) -> set[str]:
    """Return the commands of the steps."""
    steps = re.findall(r'^ *step "[^"]*" (.*?)(?: #.*)?$', text, re.MULTILINE)
    commands = set()
    for step in steps:
        documented = re.match(r'run_as_documented "([^"]+)"', step)
        commands.add(step if documented is None else documented.group(1))
    return {command.removeprefix(".venv/bin/") for command in commands}


def test_ci_runs_the_commands_of_the_front_pages() -> None:
    documented = set[str]()
    for page in PAGES:
        documented |= commands_of_page((ROOT / page).read_text(encoding="utf-8"))
    in_ci = commands_of_ci((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert {"make demo", "make demo ENGINE=spark", "make shop", "make test"} <= in_ci
    assert documented - in_ci - set(NOT_IN_CI) == set()
    assert set(NOT_IN_CI) - documented == set(), "no page has these commands"
    assert set(NOT_IN_CI) & in_ci == set()


def test_commands_of_a_page_are_found() -> None:
    page = """
`make setup`, then `make lint test`; `make demo ENGINE=spark ARGS="--score"`; `make_dataset` is a function.

```bash
make demo    # comment
pip install 'featurestore[all]'
```

```python
make = "`make nothing`"
```
"""
    assert commands_of_page(page) == {
        "make setup",
        "make lint",
        "make test",
        'make demo ENGINE=spark ARGS="--score"',
        "make demo",
        "pip install 'featurestore[all]'",
    }
