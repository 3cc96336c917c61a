"""Checks of hints: their code and commands name existing functions, arguments and options.

``tests/store/test_hints.py`` checks the hints in the source. ``--hints`` records the hints of the
errors that tests raise, and checks them at the end of the run.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import sqlglot

from featurestore.errors import FeatureStoreError

ROOT = Path(__file__).parents[1]
# Names of other packages in hints.
FOREIGN = {"open", "read_text", "compile", "predict", "argmax", "join", "TFRecordDataset", "set"}
FOREIGN |= {"rename_axis", "collect", "to_frame", "toDF", "reshape", "select", "index", "get"}
FOREIGN |= {"pd", "DataFrame", "stop", "append", "hole", "dumps", "toArrow", "value_counts"}
FOREIGN |= {"replace", "Path", "eval", "from_list"}
# Arguments of other libraries' functions, and setting names before an equals sign.
OTHER_ARGUMENTS = {
    "column_list",
    "compression_type",
    "weighted_metrics",
    "hole",
    "dropna",
    "names_of",
    "dtype",
    "value_set",
    "min_value",
    "max_value",
}
# Variables of our objects in hints.
OWN_OBJECTS = {"store", "frame", "group", "dataset", "view", "reader", "study", "featurestore", "t"}


def code_of(text: str) -> ast.AST | None:
    """Return the code at the start of a hint, or None for prose and commands."""
    # A colon also separates the keys and values of a dict.
    first_choices = [re.split(separator, text)[0] for separator in (", or ", "; | or ", ": ")]
    for candidate in (text, *first_choices):
        for form in (candidate, f"f({candidate})"):
            try:
                tree = ast.parse(form.strip())
            except SyntaxError:
                continue
            nodes = list(ast.walk(tree))
            if any(isinstance(node, ast.Call | ast.Assign) for node in nodes):
                return tree
    return None


def source_trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the syntax tree of each module of the library; together they are a million objects."""
    for folder in ("featurestore", "connectors/featurestore_connectors"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


@cache
def parameters() -> dict[str, set[str]]:
    """Return the argument names of each function and class of the source; * accepts any."""
    argument_names: dict[str, set[str]] = defaultdict(set)
    for _, tree in source_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                argument_names[node.name].update(argument.arg for argument in names)
                if arguments.kwarg is not None:
                    argument_names[node.name].add("*")
            elif isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                        argument_names[node.name].add(member.target.id)
                    elif isinstance(member, ast.FunctionDef) and member.name == "__init__":
                        names = [*member.args.args, *member.args.kwonlyargs]
                        argument_names[node.name].update(argument.arg for argument in names)
    return argument_names


@cache
def argument_names() -> frozenset[str]:
    """Return the argument names of all functions and classes, and of other names in hints."""
    return frozenset(OTHER_ARGUMENTS).union(*parameters().values())


def code_problems(text: str, *, is_recorded: bool = False) -> Iterator[str]:
    """Yield the unknown functions and arguments in the code of a hint.

    A recorded hint may call any function of another library.
    """
    tree = code_of(text)
    if tree is None:
        if re.match(r"\w+=[\[{(].*[\]})]$|[\w.]+\(.*\)$", text):
            yield "is not valid Python"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                is_argument = isinstance(target, ast.Name) and "." not in ast.unparse(node.value)
                if is_recorded:
                    is_argument = is_argument and text.startswith(f"{ast.unparse(target)}=")
                if is_argument and ast.unparse(target) not in argument_names():
                    yield f"unknown argument {ast.unparse(target)}="
        if not isinstance(node, ast.Call) or (is_recorded and is_foreign(node)):
            continue
        if ast.unparse(node.func).startswith(("torch.", "ray.")):
            continue
        name = ast.unparse(node.func).rsplit(".", 1)[-1]
        arguments = {keyword.arg for keyword in node.keywords if keyword.arg}
        if name == "f" or name in FOREIGN:
            if not arguments <= argument_names():
                yield f"unknown arguments {arguments}"
            continue
        if name not in parameters():
            yield f"unknown function {name}()"
            continue
        allowed = parameters()[name] | {"hole"}
        if "*" not in allowed and not arguments <= allowed:
            yield f"unknown arguments {name}({arguments - allowed}=)"


def is_foreign(call: ast.Call) -> bool:
    """Return whether a call is neither of a plain name nor of a method of our objects."""
    if isinstance(call.func, ast.Name):
        return hasattr(builtins, call.func.id)
    owner = getattr(call.func, "value", None)
    return not (isinstance(owner, ast.Name) and owner.id in OWN_OBJECTS)


def command_problems(text: str) -> Iterator[str]:
    """Yield the unknown subcommands and options in a command line."""
    import typer

    from featurestore.cli import app

    command: Any = typer.main.get_command(app)
    words = shlex.split(text.split(",")[0].replace("'", ""))[1:]
    while words and hasattr(command, "commands"):
        word = words.pop(0)
        if word.startswith("--"):  # an option of the store, and its value
            words = words[1:]
            continue
        if word not in command.commands:
            yield f"unknown command {word}"
            return
        command = command.commands[word]
    options = {name for parameter in command.params for name in parameter.opts}
    if unknown := {word for word in words if word.startswith("--")} - options:
        yield f"unknown options {unknown}"


def sql_problems(text: str) -> Iterator[str]:
    """Yield why the first expression of a hint is not SQL, unless the hint is prose."""
    expression = re.split("; |, or ", text)[0]
    if re.match(r"[\w.]+\(.*\)$", expression):
        try:
            sqlglot.parse_one(expression, dialect="duckdb")
        except sqlglot.errors.ParseError as error:
            yield f"is not valid SQL: {error}"


def record_hints(folder: Path) -> None:
    """Write the hint of each error that the library raises in this process to a file."""
    initialize = FeatureStoreError.__init__
    recorded: set[tuple[str | None, str | None]] = set()

    def initialize_and_record(
        self: FeatureStoreError,
        message: str,
        *,
        hint: str | None = None,
        command: str | None = None,
    ) -> None:
        initialize(self, message, hint=hint, command=command)
        frame = sys._getframe(1)
        module = frame.f_globals.get("__name__", "")
        if (hint, command) not in recorded and module.startswith("featurestore"):
            recorded.add((hint, command))
            line = json.dumps([f"{module}:{frame.f_lineno}", hint, command])
            with open(folder / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")

    FeatureStoreError.__init__ = initialize_and_record  # type: ignore[method-assign]


def find_recorded_problems(folder: Path) -> list[str]:
    """Return the problems of the recorded hints, each with the position of its error."""
    positions: dict[str, str] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            position, *texts = json.loads(line)
            positions |= {text: position for text in texts if text}
    problems = []
    for text, position in positions.items():
        # A failed job passes on the hint of its error, followed by the path of its log.
        origin = positions.get(text.partition("; log: ")[0], position)
        if re.match("featurestore [a-z]", text):
            text_problems = command_problems(text)
        elif origin.startswith("featurestore.usersql.spark_"):
            text_problems = sql_problems(text)
        else:
            text_problems = code_problems(text, is_recorded=True)
        problems += [f"{position}: {problem}: {text}" for problem in text_problems]
    return problems
