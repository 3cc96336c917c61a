"""Whether published values belong to the tables of a view: the checks of readers and publishers.

A state record has the name of its view. The same name may be that of another view: in another
feature store that uses the same online store, or with a group that was deleted and created again.
"""

from __future__ import annotations

from contextlib import closing

from featurestore.errors import NotPublished, PublishedValueMismatch
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.online_store import EMBEDDED
from featurestore.registry import featuregroups, online_stores
from featurestore.serving.online_reads import OnlineReads
from featurestore.serving.state import STATE_FORMAT, Origin, PublishedView, ViewState
from featurestore.serving.stores import open_online_store
from featurestore.session import Session


def read_state(session: Session, spec: FeatureViewSpec, online: str | None) -> ViewState:
    """Return the state of a published view; see ``read_server_state``."""
    state, _ = read_server_state(session, spec, online)
    return state


def read_server_state(
    session: Session, spec: FeatureViewSpec, online: str | None
) -> tuple[ViewState, bool]:
    """Return the state of a published view, and whether its server may have lost values since.

    Raises:
        NotPublished: The view is not published to the online store.
        PublishedValueMismatch: The values are those of other tables.
        PublishedStateDamaged: The state differs from what was written.
    """
    with closing(open_online_store(session, online)) as store:
        view = PublishedView(spec.name, spec.version, store.config.name)
        reads = OnlineReads(store)
        (content,) = reads.read([view.key])
        state = ViewState.parse(content, view)
        check_published(session, state, view)
        return state, reads.server_identity() not in (None, state.server)


def check_published(session: Session, state: ViewState, view: PublishedView) -> None:
    """Check that a view has published values, and that they are those of its tables.

    Raises:
        NotPublished: The view is not published to the online store.
        PublishedValueMismatch: Another feature store or an earlier release published the values,
            or a group was deleted and created again since.
    """
    if state.generation == 0:
        raise NotPublished(
            f"{view.subject} is not published to the online store {view.online!r}.",
            hint=view.publish_line(),
        )
    _check_origin(session, state, view)
    if state.format < STATE_FORMAT:
        raise PublishedValueMismatch(
            f"{view.subject} was published to the online store {view.online!r} by an earlier "
            "release, whose values have no checksums.",
            hint=view.publish_line(full=True),
        )
    for name, version in _replaced_groups(session, state):
        raise PublishedValueMismatch(
            f"{view.subject} was published to the online store {view.online!r} from another "
            f"feature group {name!r} version {version}, which was deleted.",
            hint=view.publish_line(),
        )


def find_origin(session: Session, online: str) -> Origin:
    """Return the origin of the values that this feature store publishes to an online store."""
    with session.registry.reading() as connection:
        created = {store.name: store.created for store in online_stores.list_all(connection)}
    # Several feature stores may have the same path, for example in containers.
    return Origin(session.location, created.get(online, 0))


def is_own_state(session: Session, state: ViewState, *, online: str) -> bool:
    """Return whether this feature store wrote the state record of a view."""
    # The embedded online store is a file of the feature store, and is moved with it.
    if online == EMBEDDED or state.origin in (None, find_origin(session, online)):
        return True
    assert state.origin is not None
    # The registration of the online store may have been removed and added again.
    is_same_place = state.origin.location == session.location
    return is_same_place and (_has_own_tables(session, state) or not state.groups)


def check_publisher(session: Session, state: ViewState, *, view: PublishedView, full: bool) -> None:
    """Check that this feature store may change a state record.

    ``full`` also allows records with the tables of this store, since a store can be moved.

    Raises:
        PublishedValueMismatch: Another feature store publishes a view with the same name.
    """
    if not (full and _has_own_tables(session, state)):
        _check_origin(session, state, view)


def _check_origin(session: Session, state: ViewState, view: PublishedView) -> None:
    online = view.online
    if is_own_state(session, state, online=online):
        return
    hint = (
        "use another database of the server: "
        "featurestore.add_online_store('cache2', 'redis://localhost:6379/1')"
    )
    if _has_own_tables(session, state):
        hint += f"; if the store was moved: {view.publish_line(full=True)}"
    mismatch = PublishedValueMismatch(
        f"The online store {online!r} has the values of {view} of another feature store.",
        hint=hint,
    )
    # A note is shown in tracebacks only: responses of servers and errors of job runs have the
    # message, and must not reveal paths of other stores.
    mismatch.add_note(f"The other feature store is at {state.origin}.")
    raise mismatch


def _has_own_tables(session: Session, state: ViewState) -> bool:
    """Return whether a published group has its registered table."""
    return len(_replaced_groups(session, state)) < len(state.groups)


def _replaced_groups(session: Session, state: ViewState) -> list[tuple[str, int]]:
    """Return the published groups whose table is not the registered one."""
    with session.registry.reading() as connection:
        registered = {group: featuregroups.find(connection, *group) for group in state.groups}
    return [
        group
        for group, published in state.groups.items()
        if (table := registered[group]) is None or table.table_id != published.table_id
    ]
