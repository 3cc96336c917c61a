"""A store at an address: pages for people and a REST interface for programs.

``create_app`` makes the application, ``serve`` runs it. Pages are rendered here, so that they work
without JavaScript; every record that a page shows can be had under ``/api/v1`` too.
"""

from featurestore.server.app import create_app
from featurestore.server.run import serve
from featurestore.server.settings import Provider, ServerSettings

__all__ = ["Provider", "ServerSettings", "create_app", "serve"]
