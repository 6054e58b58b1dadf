"""The console: pages for operators, rendered on the server, with the operations of the admin API.

It knows HTML, sessions and `headgate.operations`, but not the database, the store or the admin API's HTTP.
"""

from headgate.console.app import Console
from headgate.console.sessions import Gatekeeper, Sessions

__all__ = ["Console", "Gatekeeper", "Sessions"]
