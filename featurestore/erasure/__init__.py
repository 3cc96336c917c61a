"""Erasure of entities: people may ask that their rows are removed, in all places of a store.

``AREAS`` lists the parts of a store that are searched. A new part needs an area.
"""

from featurestore.erasure.run import AREAS, erase, verify_erasure

__all__ = ["AREAS", "erase", "verify_erasure"]
