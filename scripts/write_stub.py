"""Write ``featurestore/__init__.pyi`` from the signatures of FeatureStore.

Usage: ``python scripts/write_stub.py``. Type checkers and editors read the stub, because the module
creates its functions at first use.
"""

from __future__ import annotations

import ast
import copy
import sys
from pathlib import Path

import featurestore

PACKAGE = Path(featurestore.__file__).parent
STUB = PACKAGE / "__init__.pyi"
HEADER = '''"""A feature store for people who train deep-learning models.

Written by scripts/write_stub.py.
"""

'''
# The result type of each dataframe_type=.
DATAFRAMES = {
    "None": "FeatureFrame",
    "Literal['pandas']": "pd.DataFrame",
    "Literal['polars']": "pl.DataFrame",
    "Literal['arrow']": "pa.Table",
    "Literal['numpy']": "np.ndarray[Any, Any]",
    "Literal['python']": "list[dict[str, Any]]",
    "Literal['spark']": "SparkDataFrame",
}
EXTRA_IMPORTS = {
    "np": "import numpy as np",
    "pa": "import pyarrow as pa",
    "pl": "import polars as pl",
    "pd": "import pandas as pd",
    "SparkDataFrame": "from pyspark.sql import DataFrame as SparkDataFrame",
    "overload": "from typing import overload",
}


def stub_text() -> str:
    """Return the text of the stub."""
    body: list[ast.stmt] = []
    for file in sorted((PACKAGE / "store").glob("*.py")):
        if file.name.startswith("remote"):  # the same calls, for served stores
            continue
        body += ast.parse(file.read_text(encoding="utf-8")).body
    tree = ast.Module(body, [])
    methods = functions_by_name(tree)
    functions = [bare(methods["connect"])]
    for name in featurestore._FUNCTIONS:
        functions += variants(methods[name])
    used = names_in(functions)
    imports = imported(tree, used - set(featurestore._HOMES))
    imports |= {EXTRA_IMPORTS[name] for name in used & set(EXTRA_IMPORTS)}
    exports = []
    for name, home in sorted(featurestore._HOMES.items(), key=lambda pair: pair[1]):
        if name != "connect":
            exports.append(f"from {home} import {name} as {name}")
    signatures = [ast.unparse(each) for each in functions]
    lines = [*sorted(imports), *exports, "", "__version__: str", "", *signatures]
    return HEADER + "\n".join(lines) + "\n"


def functions_by_name(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module and the methods of its classes."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found


def names_in(functions: list[ast.FunctionDef]) -> set[str]:
    """Return the names in signatures."""
    found = set()
    for function in functions:
        found |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return found


def variants(method: ast.FunctionDef) -> list[ast.FunctionDef]:
    """Return a method as a function, with an overload for each kind of result."""
    function = bare(method)
    names = [each.arg for each in function.args.kwonlyargs]
    if "dataframe_type" in names:
        cases = {("dataframe_type", kind): result for kind, result in DATAFRAMES.items()}
    elif "plot" in names:
        result = "pd.DataFrame" if "descriptive" in function.name else "Figure"
        cases = {("plot", "Literal[True]"): "None", ("plot", "Literal[False]"): result}
    else:
        return [function]
    overloads = []
    for (argument, kind), result in cases.items():
        overloads.append(overload(function, argument, kind, result))
    return overloads


def overload(function: ast.FunctionDef, argument: str, kind: str, result: str) -> ast.FunctionDef:
    made = copy.deepcopy(function)
    made.decorator_list = [ast.Name("overload", ast.Load())]
    made.returns = ast.parse(result, mode="eval").body
    index = [each.arg for each in made.args.kwonlyargs].index(argument)
    made.args.kwonlyargs[index].annotation = ast.parse(kind, mode="eval").body
    default = made.args.kw_defaults[index]
    value = default.value if isinstance(default, ast.Constant) else ...
    if kind not in (repr(value), f"Literal[{value!r}]"):  # only the default kind is optional
        made.args.kw_defaults[index] = None
    return made


def bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return a function without self, decorators, docstring and body."""
    made = copy.deepcopy(function)
    made.args.args = [each for each in made.args.args if each.arg != "self"]
    made.decorator_list = []
    made.body = [ast.Expr(ast.Constant(...))]
    return made


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """Return the import lines of the module, one name per line."""
    lines = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
        for each in node.names:
            if (each.asname or each.name) in names:
                suffix = f" as {each.asname}" if each.asname else ""
                lines.add(f"{start} {each.name}{suffix}")
    return lines


def formatted(text: str) -> str:
    """Return the text in ruff format."""
    import subprocess

    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
        )  # fmt: skip
        text = done.stdout
    return text


if __name__ == "__main__":
    STUB.write_text(formatted(stub_text()), encoding="utf-8")
