"""Access to the files of a store, on local disks or at a URI.

All files are opened through a ``Storage``, which ``storage_for`` selects by the path: ``local`` for
local paths, ``remote`` for URIs. ``files`` contains functions that take a path, ``location`` parses
URIs, and ``connections`` connects to their buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurestore.storage.local import LocalStorage
from featurestore.storage.location import is_uri
from featurestore.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from featurestore.storage.interface import Storage

LOCAL = LocalStorage()
REMOTE = RemoteStorage()


def storage_for(path: str) -> Storage:
    """Return the storage that contains a path.

    >>> storage_for("/data/store").is_local, storage_for("s3://models/features").is_local
    (True, False)
    """
    return REMOTE if is_uri(path) else LOCAL
