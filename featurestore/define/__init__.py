"""Definitions of a project in git: groups, views, sources and alert channels.

A file of a project calls these functions at its top level. ``store.apply`` creates and changes what
they define, and ``store.plan`` shows what it would do. Jobs and monitors are defined by
``featurestore.job`` and its siblings.
"""

from featurestore.define.definitions import (
    alert_channel,
    external_featuregroup,
    feature_view,
    featuregroup,
    source,
)

__all__ = ["alert_channel", "external_featuregroup", "feature_view", "featuregroup", "source"]
