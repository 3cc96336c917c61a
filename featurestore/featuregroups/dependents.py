"""Feature views that read a group: warnings and errors for changes that affect them."""

from __future__ import annotations

from featurestore.errors import FeatureViewWarning, UsedByFeatureView, listing
from featurestore.model.callers import warn_caller
from featurestore.model.feature_view import FeatureViewSpec, incompatible_features
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.registry import feature_views
from featurestore.session import Session


def warn_views(session: Session, spec: FeatureGroupSpec) -> None:
    """Warn of every view that reads features which a new definition does not have.

    A view reads a fixed version: a later one without a feature only prevents an update of the view,
    a recreated version breaks it.
    """
    with session.registry.reading() as connection:
        reading = feature_views.reading(connection, spec.name)
    for view in reading:
        missing_features = _missing_features(view, spec)
        if missing_features:
            warn_caller(
                f"{_view_title(view)} reads feature group {spec.name!r}: in version {spec.version} "
                f"{', '.join(missing_features)}. {_consequence(view, spec)}",
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
    description = f"Feature group {name!r} version {version} is read by the feature views {users}"
    if not force:
        raise UsedByFeatureView(
            f"{description}.",
            hint="delete those first, or force=True: they cannot be read any more",
        )
    warn_caller(f"{description}, which cannot be read any more.", FeatureViewWarning)


def _missing_features(view: FeatureViewSpec, spec: FeatureGroupSpec) -> list[str]:
    return incompatible_features(
        [feature for feature in view.features if feature.group == spec.name], spec
    )


def _consequence(view: FeatureViewSpec, spec: FeatureGroupSpec) -> str:
    if (spec.name, spec.version) in view.groups:
        return "It cannot be read any more."
    return "It goes on reading the version that it names."


def _view_title(view: FeatureViewSpec) -> str:
    return f"Feature view {view.name!r} version {view.version}"
