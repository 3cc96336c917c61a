"""Credentials of drivers: those of a definition, and those of the machine on request.

Drivers read missing passwords from environment variables, password files, client certificates and
tickets. A source or an online store of a registry gets them only with ``secret="environment"``.
"""

from __future__ import annotations

from featurestore.errors import InvalidArgument

# A file that does not exist on any machine: libpq would warn about ``/dev/null``.
_NO_FILE = "/dev/null/none"
# Methods that need only the password of the connection; GSSAPI would use a ticket.
_AUTH_METHODS = "password,md5,scram-sha-256,none"
# The first version of libpq with ``require_auth``.
_HAS_REQUIRE_AUTH = 160_000


def libpq_parameters(*, uses_environment: bool, version: int = _HAS_REQUIRE_AUTH) -> dict[str, str]:
    """Return connection parameters of libpq, which all its drivers accept.

    Without ``uses_environment``, libpq uses no ``PGPASSWORD``, password file, client certificate or
    Kerberos ticket, also not those of a service (``PGSERVICE``), which only sets what is missing. The
    caller replaces ``password``.

    Args:
        uses_environment: Whether the credentials of the machine may be used.
        version: The version number of libpq.

    >>> libpq_parameters(uses_environment=True)
    {}
    """
    if uses_environment:
        return {}
    parameters = {
        "password": "",
        "passfile": _NO_FILE,
        "sslcert": _NO_FILE,
        "sslkey": _NO_FILE,
        "gssencmode": "disable",
    }
    if version >= _HAS_REQUIRE_AUTH:
        parameters["require_auth"] = _AUTH_METHODS
    return parameters


def needs_environment_error(source: str, credentials: str) -> InvalidArgument:
    """Return the error for a source that can only use the credentials of the machine.

    Args:
        source: The source in the message, such as "Source 'lake'".
        credentials: What its driver uses.
    """
    return InvalidArgument(
        f"{source}: without a secret, its driver would use {credentials} of this machine.",
        hint="secret='environment' allows that",
    )
