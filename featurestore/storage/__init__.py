"""Access to the files of a store, on local disks or at a URI.

All files are opened through a ``Storage``: ``LocalStorage`` for local paths, ``RemoteStorage`` for
URIs. ``Session.storage`` is the storage of a store; for other paths, ``storage_for`` selects one.
``files`` reads and writes JSON and computes hashes, ``location`` parses URIs, and ``connections``
connects to their buckets. Code outside this package never calls ``open``.
"""

from featurestore.storage.base import Storage
from featurestore.storage.local import LocalStorage
from featurestore.storage.remote import RemoteStorage

__all__ = ["Storage", "storage_for"]

_LOCAL = LocalStorage()
_REMOTE = RemoteStorage()


def storage_for(path: str) -> Storage:
    """Return the storage that contains a path.

    >>> storage_for("/data/store").is_local, storage_for("s3://models/features").is_local
    (True, False)
    """
    return _REMOTE if "://" in path else _LOCAL
