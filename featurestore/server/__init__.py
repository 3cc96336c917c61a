"""Web server for a store: web pages and a REST interface.

``create_app`` builds the ASGI application and ``serve`` runs it. Pages are rendered on the server
and work without JavaScript; ``/api/v1`` returns all records that the pages display.
"""

from featurestore.server.app import create_app, serve
from featurestore.server.settings import Provider, ServerSettings

__all__ = ["Provider", "ServerSettings", "create_app", "serve"]
