"""Removal of details of this machine from text for readers: paths, addresses, secrets, controls.

The text of an exception comes from any library. It may contain paths of the server, the host and
port of a database, a password in a URL, or line breaks that imitate the next record of a log.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from featurestore.model.display import escape_controls

REMOVED = "[...]"
_ADDRESS = "[address]"
_PATH = "[path]"
_STORE = "the store"
# Hosts in hints, which are examples.
_EXAMPLES = ("host", "host:8787", "example.com", "example.org")
# Folders of the root directory on other systems, whose paths a stored error may contain.
_ROOTS = (
    "bin|boot|data|dev|etc|home|lib|media|mnt|nix|opt|private|proc|root|run|sbin|scratch|srv|sys|tmp"
    "|Users|Library|Volumes|usr|var|work|workspace"
)
_CODE_FILES = ("py", "sql", "toml", "json", "yaml", "yml", "html", "parquet", "csv", "log")
# Names and schemes are bounded or begin at a word, since clients choose long texts: a search from
# each character to the end of a word would take quadratic time.
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,40})://([^\s'\"<>`]*)")
_IP_ADDRESS = re.compile(r"(?<![\w.:])\[?([0-9A-Fa-f]*:[0-9A-Fa-f:.]*|\d+(?:\.\d+){3})\]?(:\d+)?")
_HOST_AND_PORT = re.compile(
    r"(?<![\w.@-])(localhost|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.([A-Za-z][\w-]*)):\d{2,5}(?!\w)"
)
# The words of drivers (libpq, redis, urllib3) and of command lines before a host or a port. Quotes in
# the code of a traceback have backslashes.
_AFTER_WORDS = re.compile(
    r"""(\b(?:server\sat|host\sname|connect(?:ing|ion)?\sto|port)\s\\*"?|(?<!\S)-[hp]\s
    |\bhost=\\*['"]?|\bport=\\*['"]?|\b(?:user|role|database)\s\\*")(?!server\b)([\w.:-]*[\w-])""",
    re.VERBOSE,
)
_SECRET = re.compile(
    r"""(?<![\w-])([\w-]+)(\\*["']?=|\\*["']:\s*|:\s+(?=(?:Bearer|Basic)\s))((?:Bearer|Basic)\s+)?"""
    r"""(\[\.\.\.\]|\\*"[^"]*"|\\*'[^']*'|[^\s,;&'")\]}\\]+)""",
    re.IGNORECASE,
)
# Unlike in a URI, "key" alone does not mark a secret: primary_key="who".
_SECRET_NAME = re.compile(
    r"passw|passwd|pwd|secret|(?:^|[_-])token$|(?:api|access|account|private|shared)[_-]?key"
    r"|^authorization$",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\bfs_[A-Za-z0-9_-]{16,}")


def remove_machine_details(
    text: str, *, location: str | None = None, addresses: Collection[str] = ()
) -> str:
    r"""Return text without paths, addresses and secrets of this machine, as one record of a log.

    A path below the store becomes relative to it, other absolute paths end in at most their file
    name. Lines after the first one are indented. The function is idempotent.

    Args:
        text: The text of an exception, or a record of a log.
        location: The location of the store.
        addresses: The URIs of sources, online stores, channels and databases of the store.

    >>> remove_machine_details("no /data/shop/registry.db in /home/ann", location="/data/shop")
    'no registry.db in [path]'
    >>> remove_machine_details("redis://ann:secret@cache:6379/0 is down: cache:6379, ::1")
    'redis://[...] is down: cache:6379, [address]'
    >>> remove_machine_details("cache:6379 is down", addresses=["redis://cache"])
    '[address] is down'
    >>> print(remove_machine_details("no rows\n2024-03-01 INFO done\x1b[2K"))
    no rows
      2024-03-01 INFO done\u001b[2K
    """
    text = escape_controls(text)
    if location:
        text = remove_location(text, location=location)
    text = _TOKEN.sub(REMOVED, _SECRET.sub(_without_secret, text))
    text = _URL.sub(_without_authority, text)
    for host, is_word in _hosts_of(tuple(addresses)):
        # A host that is a word, such as "cache", may be a name: it is removed next to its port.
        suffix = r":\d+(?!\w)" if is_word else r"(?::\d+)?(?![\w-])"
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}{suffix}", _ADDRESS, text)
    text = _AFTER_WORDS.sub(rf"\1{_ADDRESS}", text)
    text = _IP_ADDRESS.sub(_without_ip_address, text)
    # The number after a file of code is a line.
    text = _HOST_AND_PORT.sub(
        lambda match: match[0] if (match[2] or "").lower() in _CODE_FILES else _ADDRESS, text
    )
    quoted_path, plain_path = _path_patterns()
    text = quoted_path.sub(lambda match: match[1] + _short_path(match[2]) + match[1], text)
    text = plain_path.sub(lambda match: _short_path(match[0]), text)
    return indent_continuation(text)


def indent_continuation(text: str) -> str:
    r"""Return text whose lines after the first one are indented, as one record of a log.

    >>> indent_continuation("failed\n2024-03-01 INFO done"), indent_continuation("a\n  b")
    ('failed\n  2024-03-01 INFO done', 'a\n  b')
    """
    first, *lines = text.split("\n")
    if not any(line and not line.startswith("  ") for line in lines):
        return text
    return "\n".join([first, *(f"  {line}" if line else line for line in lines)])


def remove_location(text: str, *, location: str) -> str:
    """Return text with the paths below a location relative to it.

    >>> remove_location("no '/data/shop/a' in /data/shop, /data/shops", location="/data/shop")
    "no 'a' in the store, /data/shops"
    """
    location = location.rstrip("/")
    for path in {location, os.path.realpath(location)} if "://" not in location else {location}:
        text = re.sub(rf"(?:file://)?(?<![\w.]){re.escape(path)}/(?=[\w.])", "", text)
        text = re.sub(rf"(?:file://)?(?<![\w.]){re.escape(path)}/?(?![\w-])", _STORE, text)
    return text


def _without_secret(match: re.Match[str]) -> str:
    name, separator, scheme, value = match.groups(default="")
    word = value.strip("'\".\\")
    # References to secrets and the beginning of a token are not secret.
    is_reference = word.startswith(("env:", "file:")) or word in ("", "fs_", REMOVED)
    if is_reference or not _SECRET_NAME.search(name):
        return match[0]
    return f"{name}{separator}{scheme}{REMOVED}"


def _without_authority(match: re.Match[str]) -> str:
    authority = match[2].partition("/")[0]
    return match[0] if authority in _EXAMPLES else f"{match[1]}://{REMOVED}"


@lru_cache(maxsize=64)
def _hosts_of(addresses: Iterable[str]) -> list[tuple[str, bool]]:
    """Return the hosts of addresses, longest first, and whether a host may be a name."""
    hosts = set()
    for address in addresses:
        try:
            host = urlsplit(address.replace("+", "", 1)).hostname
        except ValueError:
            continue
        hosts.update((host or "").split(","))
    return [(host, host.isidentifier()) for host in sorted(hosts, key=len, reverse=True) if host]


def _without_ip_address(match: re.Match[str]) -> str:
    address = match[1].rstrip(".:") if match[1].count(":") < 2 else match[1].rstrip(".")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return match[0]
    return _ADDRESS + match[1][len(address) :] if not match[2] else _ADDRESS


@lru_cache(maxsize=1)
def _path_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a quoted path, which may contain spaces, and of another path."""
    try:
        folders = {entry.name for entry in os.scandir(os.path.abspath(os.sep)) if entry.is_dir()}
    except OSError:
        folders = set()
    roots = "|".join([_ROOTS, *map(re.escape, folders)])
    drive = r"\b[A-Za-z]:[\\/]+"
    quoted = re.compile(rf"""(['"`])((?:/(?:{roots})(?![\w.-])|{drive}(?=\w))[^'"`\n]*)\1""")
    plain = re.compile(
        rf"(?<![\w.\]/~])/(?:{roots})(?![\w-])(?:/[^\s'\"`<>|:,;()\[\]{{}}]*)*"
        rf"|{drive}(?=\w)[^\s'\"`<>|,;()\[\]{{}}]*"
    )
    return quoted, plain


def _short_path(path: str) -> str:
    """Return the file name of a path, which a reader needs in a traceback, or a placeholder.

    >>> _short_path("/srv/ann/jobs/pay.py"), _short_path("/home/ann")
    ('.../pay.py', '[path]')
    """
    name = re.split(r"[\\/]", path)[-1]
    stem, dot, ending = name.rpartition(".")
    is_file = bool(stem and dot) and ending.isalnum()
    # A path with two components may be the home directory of a user, such as /home/ann.smith.
    return f".../{name}" if is_file and len(re.findall(r"[\\/]", path)) > 2 else _PATH
