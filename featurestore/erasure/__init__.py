"""Erasure of entities: rows of people are removed on request, in all areas of a store.

``AREAS`` lists the parts of a store that are searched. A new part needs an area.
"""

from featurestore.erasure.run import AREAS, erase, verify_erasure

__all__ = ["AREAS", "erase", "verify_erasure"]
