"""The console: pages for operators, rendered here, on the same operations as the admin API.

Knows HTML, sessions and `headgate.operations`; of the database, the store and the admin API's HTTP, nothing.
"""

from headgate.console.app import Console
from headgate.console.sessions import Gatekeeper, Sessions

__all__ = ["Console", "Gatekeeper", "Sessions"]
