"""Pages for admins: users and their roles, tokens, and private groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response

from featurestore.errors import FeatureStoreError, InvalidArgument, NotAllowed
from featurestore.registry import access, featuregroups
from featurestore.registry.access import User
from featurestore.server.access import changes
from featurestore.server.access.visitors import ADMIN, READER, ROLES, SCOPES, Visitor
from featurestore.server.account import TOKEN_LIFETIMES
from featurestore.server.guard import CurrentVisitor, Form, FullStore, browser_user
from featurestore.server.rendering import PageNumber, load_page, page
from featurestore.server.rest import http_status_of
from featurestore.server.routes import Router
from featurestore.store import FeatureStore

_MAX_NAMES = 1000
pages = Router(prefix="/admin")


def admin_session(visitor: CurrentVisitor) -> Visitor:
    """Return the visitor if an admin is signed in with a browser.

    Raises:
        NotAllowed: The visitor is not an admin or uses a token, or the server has no sign-in.
    """
    user = browser_user(visitor)
    user.check(ADMIN)
    return user


Admin = Annotated[Visitor, Depends(admin_session)]


@pages.get("")
def users_page(
    request: Request, store: FullStore, admin: Admin, number: PageNumber = 1
) -> Response:
    """Display the users with their roles on the store and on groups."""
    return _page(request, store, "users", number=number)


@pages.get("/tokens")
def tokens_page(
    request: Request, store: FullStore, admin: Admin, number: PageNumber = 1
) -> Response:
    """Display the tokens of all users without their secrets."""
    return _page(request, store, "tokens", number=number)


@pages.get("/groups")
def groups_page(
    request: Request, store: FullStore, admin: Admin, number: PageNumber = 1
) -> Response:
    """Display the private groups, and the roles on groups."""
    return _page(request, store, "groups", number=number)


@pages.get("/groups/{name}/public")
def public_group_page(request: Request, store: FullStore, admin: Admin, name: str) -> Response:
    """Display what all readers can read once a private group is public, with the button."""
    return page(
        request,
        "admin_public_group.html",
        title=f"Make {name} public",
        tab="groups",
        group=name,
        opened_objects=changes.list_opened_objects(store.session, name),
    )


@pages.post("/users")
def add_user(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Add a user with a password, with an identity of the provider, or with neither."""
    settings = request.app.state.settings
    subject = form.get("subject", "").strip() or None
    has_identity = subject is not None and settings.provider is not None

    def add() -> User:
        return changes.add_user(
            store.session,
            admin.actor,
            _field(form, "user"),
            role=form.get("role", READER),
            password=form.get("password", "") or None,
            issuer=settings.provider.issuer if has_identity else None,
            subject=subject if has_identity else None,
        )

    return _change(request, store, "users", add)


@pages.post("/users/role")
def set_role(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Change the role of a user on the store."""
    return _change(
        request,
        store,
        "users",
        lambda: changes.set_role(
            store.session, admin.actor, _field(form, "user"), _field(form, "role")
        ),
    )


@pages.post("/users/password")
def set_password(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Set the password of a user, and end the user's browser sessions."""
    return _change(
        request,
        store,
        "users",
        lambda: changes.set_password(
            store.session, admin.actor, _field(form, "user"), form.get("password", "")
        ),
    )


@pages.post("/users/remove")
def remove_user(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Remove a user with all tokens and roles."""

    def remove() -> None:
        name = _field(form, "user")
        # An admin who is removed by mistake could no longer sign in to correct it.
        if name == admin.name:
            raise NotAllowed(
                "You cannot remove your own account.", hint=f"featurestore user remove {name}"
            )
        changes.remove_user(store.session, admin.actor, name)

    return _change(request, store, "users", remove)


@pages.post("/tokens")
def make_token(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Create a token for a user and display its secret once."""
    try:
        new_token, _ = changes.make_token(
            store.session,
            admin.actor,
            _field(form, "user"),
            scope=form.get("scope", "read"),
            label=form.get("label", ""),
            expires=form.get("expires", "90d"),
        )
    except FeatureStoreError as error:
        return _page(request, store, "tokens", refusal=error)
    response = _page(request, store, "tokens", new_token=new_token)
    response.headers["cache-control"] = "no-store"
    return response


@pages.post("/tokens/revoke")
def revoke_token(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Revoke a token of any user."""
    return _change(
        request,
        store,
        "tokens",
        lambda: changes.revoke_token(store.session, admin.actor, _field(form, "token")),
    )


@pages.post("/groups/private")
def set_private(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Make a group private, or public again."""
    is_private = form.get("private", "yes") == "yes"
    return _change(
        request,
        store,
        "groups",
        lambda: changes.set_private(store.session, admin.actor, _field(form, "group"), is_private),
    )


@pages.post("/groups/role")
def set_group_role(request: Request, store: FullStore, admin: Admin, form: Form) -> Response:
    """Give a user a role on a group; an empty role removes it."""
    return _change(
        request,
        store,
        "groups",
        lambda: changes.set_group_role(
            store.session,
            admin.actor,
            _field(form, "group"),
            _field(form, "user"),
            form.get("role", "") or None,
        ),
    )


def _field(form: dict[str, str], name: str) -> str:
    value = form.get(name, "").strip()
    if not value:
        raise InvalidArgument(f"The form has no {name}.")
    return value


def _change(
    request: Request, store: FeatureStore, tab: str, change: Callable[[], object]
) -> Response:
    """Make a change and redirect to its list, or display the list with the error."""
    try:
        change()
    except FeatureStoreError as error:
        return _page(request, store, tab, refusal=error)
    return RedirectResponse("/admin" if tab == "users" else f"/admin/{tab}", status_code=303)


def _page(
    request: Request,
    store: FeatureStore,
    tab: str,
    *,
    number: int = 1,
    refusal: FeatureStoreError | None = None,
    new_token: str | None = None,
) -> Response:
    """Render a list with its forms, with the error or the new token of the previous request."""
    settings = request.app.state.settings
    entries: list[Any]
    with store.session.registry.reading() as connection:
        users = access.list_users(connection)
        roles = access.all_group_roles(connection)
        private_groups = access.private_groups_of_store(connection)
        group_names = featuregroups.names(connection)
        if tab == "users":
            entries = users
        elif tab == "tokens":
            entries = access.list_tokens(connection)
        else:
            entries = sorted({*private_groups, *roles})
    current_page = load_page(
        lambda limit, offset: entries[offset : offset + limit], number=number, size=settings.page
    )
    response = page(
        request,
        f"admin_{tab}.html",
        title="Admin",
        tab=tab,
        current_page=current_page,
        users=users,
        group_names=group_names,
        most_names=_MAX_NAMES,
        roles=roles,
        private_groups=private_groups,
        store_roles=list(ROLES),
        scopes=list(SCOPES),
        lifetimes=TOKEN_LIFETIMES,
        provider=settings.provider,
        refusal=refusal,
        new_token=new_token,
    )
    if refusal is not None:
        response.status_code = http_status_of(refusal)
    return response
