"""Fork a process for each trial of a write, which saves the start-up; the protocol is JSON lines.

{"store": path, "writers": n, "rounds": n} -> {"errors": [text of each that failed]}

{"store": path, "write": name, "at": n, "action": a, "stays": bool}
    -> {"status": exit status, "error": text, "calls": calls that changed files}
``at`` = 0 counts only; ``action`` is a signal, or the negative of an errno. A write that was
stopped is answered by {"stopped": true}, and goes on at the next line, whatever that says.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from typing import Any

import verified_writes
import writes


def serve() -> None:
    """Answer requests until the input ends."""
    import deltalake  # noqa: F401
    import duckdb  # noqa: F401

    import featurestore_connectors.duckdb_delta  # noqa: F401

    # Library threads would not survive a fork, but nothing has been opened yet, so there are
    # none.
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        document = json.loads(line)
        response = several(document) if "writers" in document else trial(document)
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()
        _import(response.get("modules", []))


def _import(names: list[str]) -> None:
    """Import the modules that a write imported, so that the next fork has them."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(ImportError, AttributeError):
                importlib.import_module(name)


def several(request: dict[str, Any]) -> dict[str, Any]:
    """Run concurrent writers and report their errors."""
    errors = []
    with contextlib.ExitStack() as files:
        children = []
        for number in range(request["writers"]):
            actual = files.enter_context(tempfile.NamedTemporaryFile("r"))
            child = os.fork()
            if child == 0:
                _writer(request, number, actual.name)
            children.append((child, actual))
        for child, actual in children:
            status = os.waitpid(child, 0)[1]
            text = actual.read()
            if status or text:
                errors.append(text or f"ended with {os.waitstatus_to_exitcode(status)}")
    return {"errors": errors}


def _be_silent() -> None:
    """Redirect the output of a write, which would corrupt the protocol."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _writer(request: dict[str, Any], number: int, path: str) -> None:
    _be_silent()
    try:
        verified_writes.many(request["store"], number, request["rounds"])
    except BaseException:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(traceback.format_exc())
    finally:
        os._exit(0)


def trial(request: dict[str, Any]) -> dict[str, Any]:
    """Run one write in a forked process and report its outcome."""
    with tempfile.NamedTemporaryFile("r") as report:
        child = os.fork()
        if child == 0:
            _child(request, report.name)
        status = _wait(child)
        response: dict[str, Any] = {"error": "", "calls": 0, "modules": []}
        text = report.read()
    if text:
        response.update(json.loads(text))
    return {**response, "status": os.waitstatus_to_exitcode(status)}


def _wait(child: int) -> int:
    """Wait for the end of a process.

    One that was stopped is told of, and goes on at the next line.
    """
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        sys.stdout.write(json.dumps({"stopped": True}) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        os.kill(child, signal.SIGCONT)


def _child(request: dict[str, Any], path: str) -> None:
    import featurestore

    _be_silent()
    faults = ctypes.CDLL(None)
    faults.fault_arm.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int]
    faults.fault_count.restype = ctypes.c_long
    response: dict[str, Any] = {}
    old_modules = set(sys.modules)
    try:
        write = writes.WRITES[request["write"]]
        store = featurestore.connect(request["store"])
        write.before(store)
        faults.fault_arm(request["at"], request["action"], request["stays"])
        write.do(store)
        response = {"calls": faults.fault_count()}
    except featurestore.FeatureStoreError as error:
        response = {"calls": faults.fault_count(), "error": f"{type(error).__name__}: {error}"}
    except BaseException:
        response = {"calls": faults.fault_count(), "error": traceback.format_exc()}
    finally:
        response["modules"] = sorted(set(sys.modules) - old_modules)
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(response, stream)
        os._exit(0)


if __name__ == "__main__":
    serve()
