"""Feature views that read a group: told when the group changes what they read."""

from __future__ import annotations

from featurestore.errors import FeatureViewWarning, UsedByFeatureView, listing
from featurestore.model.callers import warn_caller
from featurestore.model.feature_view import FeatureViewSpec, incompatible_features
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import feature_views
from featurestore.session import Session


def warn_views(session: Session, spec: FeatureGroupSpec) -> None:
    """Warn of every view that a definition about to be made does not give what it reads.

    A view goes on reading the version that it names: a later one that lacks a feature only keeps
    the view from moving on, the same version made anew breaks it.
    """
    with session.registry.reading() as connection:
        reading = feature_views.reading(connection, spec.name)
    for view in reading:
        missing = _missing(view, spec)
        if missing:
            warn_caller(
                f"{_name(view)} reads feature group {spec.name!r}: in version {spec.version} "
                f"{', '.join(missing)}. {_consequence(view, spec)}",
                FeatureViewWarning,
            )


def refuse_used(session: Session, name: str, version: int, *, force: bool) -> None:
    """Refuse to delete a version that views read; with ``force`` warn that they break.

    Raises:
        UsedByFeatureView: Lists the views.
    """
    with session.registry.reading() as connection:
        reading = feature_views.reading(connection, name, version)
    if not reading:
        return
    users = listing(f"{view.name} version {view.version}" for view in reading)
    what = f"Feature group {name!r} version {version} is read by the feature views {users}"
    if not force:
        raise UsedByFeatureView(
            f"{what}.", hint="delete those first, or force=True: they cannot be read any more"
        )
    warn_caller(f"{what}, which cannot be read any more.", FeatureViewWarning)


def _missing(view: FeatureViewSpec, spec: FeatureGroupSpec) -> list[str]:
    asked = []
    for feature in view.features:
        if feature.group == spec.name:
            asked.append(feature)
    return incompatible_features(asked, spec)


def _consequence(view: FeatureViewSpec, spec: FeatureGroupSpec) -> str:
    if (spec.name, spec.version) in view.groups:
        return "It cannot be read any more."
    return "It goes on reading the version that it names."


def _name(view: FeatureViewSpec) -> str:
    return f"Feature view {view.name!r} version {view.version}"
