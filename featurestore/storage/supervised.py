"""Worker processes under a supervisor, which write their output to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from featurestore.errors import ConfigurationError, EngineError
from featurestore.storage import storage_for, supervisor
from featurestore.storage.appending import open_log

_PATIENCE_SECONDS = 20


class SupervisedProcess:
    """A command that is terminated, with all its descendants, when this process ends.

    Args:
        command: The command line.
        standard_input: The bytes for its standard input.
        log: The file to which its output is appended.
        environment: Its complete environment.
        directory: Its working directory; it is created if necessary.
        detached: Whether the supervisor survives a system that kills the children of this process.
            It still ends when this process does.

    Raises:
        ConfigurationError: The operating system is Windows.
    """

    def __init__(
        self,
        command: Sequence[str],
        standard_input: bytes,
        *,
        log: str,
        environment: Mapping[str, str],
        directory: str,
        detached: bool = False,
    ) -> None:
        if not hasattr(os, "killpg"):
            raise ConfigurationError(
                "Worker processes require process groups, which Windows does not have.",
                hint="run Python in WSL: wsl --install",
            )
        storage_for(directory).make_directory(directory)
        # Isolated mode: modules of the working directory or of PYTHONPATH must not replace those of
        # the standard library.
        options = [supervisor.DETACHED] if detached else []
        command_line = [sys.executable, "-I", supervisor.__file__, *options, *command]
        with open_log(log) as output:
            self._process = subprocess.Popen(
                command_line,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,  # Ctrl-C ends the caller, which then ends its workers
            )
        # The pipe stays open. The supervisor ends the command when the system closes it, even if
        # this process is killed.
        self._send(len(standard_input).to_bytes(8, "big") + standard_input)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # the process has already ended; its exit status shows the reason

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, None while the command is running."""
        status = self._process.poll()
        if status is not None and status > 128:
            return 128 - status
        return status

    def stop(self) -> None:
        """Terminate the process and all its descendants, and wait until they have ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def describe_exit(status: int) -> str:
    """Describe an exit status in readable form.

    >>> describe_exit(-9), describe_exit(3)
    ('killed by SIGKILL', 'exit code 3')
    """
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def check_shared_directory(path: str, machine: str) -> None:
    """Raise EngineError if this machine, which ``machine`` describes, cannot access a directory."""
    if not storage_for(path).is_directory(path):
        raise EngineError(
            f"{machine} cannot access {path!r}.",
            hint="move the store to a directory that all machines share",
        )


def python_path() -> str:
    """Return the import path of this process in the format of PYTHONPATH."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
