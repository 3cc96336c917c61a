"""Forks a process for each trial of a write, so that a trial takes no start-up; speaks JSON lines.

{"store": path, "write": name, "at": n, "action": a, "stays": bool}
    -> {"status": exit status, "error": text, "calls": calls that changed files}
``at`` = 0 counts only; ``action`` is a signal, or the negative of an errno.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

import writes


def serve() -> None:
    """Answer until the input ends."""
    import deltalake  # noqa: F401
    import duckdb  # noqa: F401

    import featurestore_connectors.duckdb_delta  # noqa: F401

    # Threads of the libraries would not survive a fork: nothing has been opened yet, so there are none.
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        answer = trial(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        _import(answer.pop("modules"))


def _import(names: list[str]) -> None:
    """Import what a write imported, so that the next one need not."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(ImportError, AttributeError):
                importlib.import_module(name)


def trial(asked: dict[str, Any]) -> dict[str, Any]:
    """Do one write in a process of its own and say how that ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(asked, writer)
    os.close(writer)
    with os.fdopen(reader) as stream:
        told = stream.read()
    _, status = os.waitpid(child, 0)
    answer: dict[str, Any] = {"error": "", "calls": 0, "modules": []}
    if told:
        answer.update(json.loads(told))
    return {**answer, "status": os.waitstatus_to_exitcode(status)}


def _child(asked: dict[str, Any], writer: int) -> None:
    import featurestore

    faults = ctypes.CDLL(None)
    faults.fault_arm.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int]
    faults.fault_count.restype = ctypes.c_long
    answer: dict[str, Any] = {}
    known = set(sys.modules)
    try:
        write = writes.WRITES[asked["write"]]
        store = featurestore.connect(asked["store"])
        write.before(store)
        faults.fault_arm(asked["at"], asked["action"], asked["stays"])
        write.do(store)
        answer = {"calls": faults.fault_count()}
    except featurestore.FeatureStoreError as error:
        answer = {"calls": faults.fault_count(), "error": f"{type(error).__name__}: {error}"}
    except BaseException:
        answer = {"calls": faults.fault_count(), "error": traceback.format_exc()}
    finally:
        answer["modules"] = sorted(set(sys.modules) - known)
        with os.fdopen(writer, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)


if __name__ == "__main__":
    serve()
