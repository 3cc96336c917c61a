"""Web server of a store: pages for browsers and a REST interface for programs.

``create_app`` builds the ASGI application and ``serve`` runs it. Pages are rendered on the server
and work without JavaScript; ``/api/v1`` returns every record that a page shows.
"""

from featurestore.server.app import create_app, serve
from featurestore.server.settings import Provider, ServerSettings

__all__ = ["Provider", "ServerSettings", "create_app", "serve"]
