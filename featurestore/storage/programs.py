"""Programs of users, which end with all their descendants at a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
    standard_input: bytes | None = None,
    discard_output: bool = False,
) -> int:
    """Run a program without a shell, and return its exit status, negative for a signal.

    At the time limit, or if this call is interrupted, the program is killed with the processes
    that it started: a script that is killed alone leaves its running command behind.

    Args:
        command: The path of the program and its arguments.
        environment: Its complete environment.
        seconds: The time limit.
        standard_input: The bytes for its standard input, None to inherit that of this process.
        discard_output: Whether its output is discarded; otherwise it inherits that of this process.

    Raises:
        OSError: The program cannot be started.
        ValueError: An argument or a variable contains a null character.
        TimeoutError: The time limit was reached.
    """
    output = subprocess.DEVNULL if discard_output else None
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=None if standard_input is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        process.communicate(standard_input, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"timed out after {seconds:g} s") from error
    finally:
        if process.returncode is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (AttributeError, ProcessLookupError):  # Windows does not have process groups
                process.kill()
            process.wait()
    return process.returncode
