"""Programs that need TensorFlow, forked from a process that has imported it.

An import takes several seconds; a fork of what has been imported and not used takes none. The
programs have the Keras of before version 3: TensorFlow asks which when it is imported. Run as a
program, this module is that process: it reads a line of JSON for each program to start or to look
for, and answers with a line.

{"program": path, "arguments": [...], "environment": {...}, "folder": path, "output": path,
 "input": path}
    -> {"pid": n}
{"pid": n} -> {"status": exit status, negative for a signal, null while it runs}
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

WORKER_MODULE = "featurestore.experiments.worker"
IMPORTED = (
    "tensorflow",
    "tf_keras",
    "featurestore.training.dataset",
    WORKER_MODULE,
)


class Forked:
    """A program in a forked process, with its output in a file."""

    def __init__(self, server: ForkServer, pid: int, output: Path) -> None:
        self.pid, self.output = pid, output
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        if self.returncode is None:
            self.returncode = self._server.ask({"pid": self.pid})["status"]
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """Wait for the process and return its exit status."""
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            assert time.monotonic() < end, self.output.read_text()[-3000:]
            time.sleep(0.02)
        return status

    def kill(self) -> None:
        """Kill the process if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(60)


class ForkedWorker:
    """A forked worker of a run, in place of a ``SupervisedProcess``.

    What it starts itself is not looked after.
    """

    def __init__(
        self,
        server: ForkServer,
        input_bytes: bytes,
        *,
        log: str,
        environment: Mapping[str, str],
        directory: str,
    ) -> None:
        os.makedirs(directory, exist_ok=True)
        actual = Path(f"{log}.given")
        actual.parent.mkdir(parents=True, exist_ok=True)
        actual.write_bytes(input_bytes)
        module = importlib.util.find_spec(WORKER_MODULE)
        assert module is not None
        assert module.origin is not None
        self._process = server.start(
            Path(module.origin),
            output=Path(log),
            environment=environment,
            folder=Path(directory),
            input_path=actual,
        )

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Stop the process."""
        self._process.kill()


class ForkedPrograms:
    """A replacement of ``subprocess`` for modules that start ``python -m`` programs.

    These are of the folder in which they are started.
    """

    STDOUT = subprocess.STDOUT

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[str],
        cwd: Path,
        **_: object,
    ) -> Forked:
        """Start a module with its errors in its output file."""
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")
        path = os.pathsep.join([str(cwd), *sys.path])
        return self._server.start(
            Path(cwd, *module.split(".")).with_suffix(".py"),
            arguments,
            output=Path(stdout.name),
            environment={**env, "PYTHONPATH": path},
            folder=cwd,
        )

    def run(self, command: Sequence[str], *, check: bool, **options: Any) -> None:
        """Run a module and check its exit status."""
        status = self.Popen(command, **options).wait()
        assert check
        assert status == 0


class ForkServer:
    """A process with all imports, started on first use, that forks programs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        *,
        output: Path,
        environment: Mapping[str, str],
        folder: Path,
        input_path: Path | None = None,
    ) -> Forked:
        """Run a Python file as a program with only this environment.

        It reads ``input_path`` as its standard input.
        """
        request = {
            "input": str(input_path or os.devnull),
            "program": str(program),
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "output": str(output),
        }
        return Forked(self, self.ask(request)["pid"], output)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request line."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=dict(
                    os.environ,
                    CUDA_VISIBLE_DEVICES="-1",
                    TF_CPP_MIN_LOG_LEVEL="2",
                    TF_USE_LEGACY_KERAS="1",
                    PYTHONPATH=os.pathsep.join(sys.path),
                ),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the process; its forks have been waited for or killed."""
        if self._process is not None:
            self._process.communicate()


def serve() -> None:
    """Answer requests until the input ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = {name: importlib.import_module(name) for name in IMPORTED}
    # The graphs of tests run a few times, so optimizing them takes longer than they do.
    optimizer: Any = modules["tensorflow"].config.optimizer
    optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Threads would not survive a fork, but nothing has been computed yet, so there are none.
    for line in sys.stdin:
        document = json.loads(line)
        response = _status(document["pid"]) if "pid" in document else {"pid": _fork(document)}
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()


def _status(pid: int) -> dict[str, int | None]:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return {"status": os.waitstatus_to_exitcode(status) if ended else None}


def _fork(request: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _run(request)
    return child


def _run(request: dict[str, Any]) -> None:
    status = 1
    try:
        with (
            open(request["input"]) as input_file,
            open(request["output"], "ab", buffering=0) as output,
        ):
            os.dup2(input_file.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.path[0:0] = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = [request["program"], *request["arguments"]]
        runpy.run_path(request["program"], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
