"""Read-only memory maps of local files whose truncation is an error instead of a signal.

A page that a file no longer has sends SIGBUS to the thread that reads it, and the signal ends the
process. No check before the read prevents this, because a file can shrink during the read. So the
handler of this module maps zeros over the missing pages, the read returns, and ``check_map``, which
callers run after each use of mapped bytes, raises an error. systemd's journal does the same.
Reading by ``pread`` needs no handler, but the additional copy of each record makes readers a third
slower.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import DatasetDamaged
from featurestore.model.runtime import ForkSafeLock

_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10
_SA_SIGINFO = 4
# The fields si_code and si_addr of siginfo_t, in bytes; a code of 0 or less is from kill().
_CODE, _ADDRESS = 8, 16
# The layouts of siginfo_t and struct sigaction are those of these systems.
_HANDLES_SIGNALS = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


@dataclass
class _Map:
    """A mapped file: where it is mapped, and the device and inode of the file."""

    address: int
    size: int
    path: str
    device_and_inode: tuple[int, int]
    has_missing_pages: bool = False


_maps: dict[int, _Map] = {}


def map_file(path: str) -> npt.NDArray[np.uint8]:
    """Map a local file into memory, read-only; the map is removed with its last view.

    ``mmap.mmap`` duplicates the descriptor of a file for as long as the map exists. Then a reader
    of a thousand shards would exceed the usual limit of 1,024 open files. This map has none.

    >>> with open("shard", "wb") as file:
    ...     _ = file.write(b"rows")
    >>> bytes(map_file("shard"))
    b'rows'
    """
    if not hasattr(mmap, "PROT_READ"):  # Windows, where a mapped file cannot be truncated
        if os.path.getsize(path) == 0:
            return np.empty(0, np.uint8)
        with open(path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if status.st_size == 0:
            return np.empty(0, np.uint8)
        address = _system_map(0, status.st_size, mmap.MAP_SHARED, descriptor)
    finally:
        os.close(descriptor)
    _maps[address] = _Map(address, status.st_size, path, (status.st_dev, status.st_ino))
    memory = (ctypes.c_ubyte * status.st_size).from_address(address)
    # Views can outlive the interpreter's exit handlers, after which the process frees the map.
    weakref.finalize(memory, _unmap, address, status.st_size).atexit = False
    _install_handler()
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8)


def check_map(data: npt.NDArray[Any]) -> None:
    """Raise DatasetDamaged if a file was truncated after ``map_file`` returned ``data``.

    Call it after each use of mapped bytes, which may be zeros. A file that was removed, or replaced
    by another one, keeps its bytes. Arrays that are not complete maps are ignored.
    """
    mapped = _maps.get(data.__array_interface__["data"][0])
    if mapped is None:
        return
    if not mapped.has_missing_pages:
        try:
            status = os.stat(mapped.path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise DatasetDamaged(
                f"The shard {mapped.path!r} cannot be read: {error.strerror or error}."
            ) from error
        is_same_file = (status.st_dev, status.st_ino) == mapped.device_and_inode
        # The rest of the last page is zeros, without a signal.
        if not is_same_file or status.st_size >= mapped.size:
            return
    raise DatasetDamaged(
        f"The shard {mapped.path!r} was truncated while it was read: it had {mapped.size:,} bytes.",
        hint="restore the shard, or create the dataset again",
    )


@contextmanager
def checked_map(data: npt.NDArray[Any]) -> Iterator[None]:
    """Check a map after the block, also if the block fails because of bytes that became zeros."""
    try:
        yield
    finally:
        check_map(data)


class _Action(ctypes.Structure):
    """``struct sigaction`` of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_install_lock = ForkSafeLock()
_previous_action = _Action()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    library.mmap.restype = ctypes.c_void_p
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return library


def _system_map(address: int, size: int, flags: int, descriptor: int) -> int:
    """Map pages and return their address.

    Raises:
        OSError: The system refuses the map.
    """
    mapped: int = _library().mmap(address, size, mmap.PROT_READ, flags, descriptor, 0)
    if mapped == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return mapped


def _unmap(address: int, size: int) -> None:
    # The system may use the address again as soon as the map is removed.
    _maps.pop(address, None)
    _library().munmap(address, size)


@cache
def _handler_address() -> int | None:
    """Return the address of the signal handler as a C function."""
    function_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    handler = function_type(_replace_pages)
    # Never freed: threads of TensorFlow may read records while the interpreter exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
    return ctypes.cast(handler, ctypes.c_void_p).value


def _replace_pages(_signal: int, info: int, _context: int) -> None:
    """Map zeros over the missing pages of a map; pass other signals on to the previous handler.

    The handler runs in the thread that read the page. ctypes acquires the interpreter's lock, which
    the thread has, or has released to copy records.
    """
    code = ctypes.c_int.from_address(info + _CODE).value
    address = ctypes.c_size_t.from_address(info + _ADDRESS).value
    for mapped in list(_maps.values()) if code > 0 else ():
        if mapped.address <= address < mapped.address + mapped.size:
            mapped.has_missing_pages = True
            page = address - address % mmap.PAGESIZE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
            _system_map(page, mapped.address + mapped.size - page, flags, -1)
            return
    _restore_handler()
    if code <= 0:
        # The system repeats only the signals of reads.
        signal.raise_signal(signal.SIGBUS)


def _install_handler() -> None:
    """Install the handler unless it is installed; PyTorch's workers, for example, replace it."""
    if not _HANDLES_SIGNALS:
        return
    with _install_lock:
        if not _is_installed():
            action = _Action(handler=_handler_address(), flags=_SA_SIGINFO)
            _library().sigaction(
                signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous_action)
            )


def _restore_handler() -> None:
    """Restore the handler that was installed before this one."""
    if _is_installed():
        _library().sigaction(signal.SIGBUS, ctypes.byref(_previous_action), None)
        # If that handler restores this one in turn, the default action ends the process.
        ctypes.memset(ctypes.byref(_previous_action), 0, ctypes.sizeof(_Action))


def _is_installed() -> bool:
    current = _Action()
    _library().sigaction(signal.SIGBUS, None, ctypes.byref(current))
    return bool(current.handler == _handler_address())
