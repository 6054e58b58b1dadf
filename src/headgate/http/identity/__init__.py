"""Who is making a request: its address, its user, its API key, its tenant and tier, as facts.

`Identity` is what a middleware is given. Nothing in here knows a framework, and nothing that a request says about
itself is believed unless it is proved, or said by a proxy that the operator trusts.
"""

from headgate.http.identity.api_key import hashed_api_key
from headgate.http.identity.facts import checked_facts, client_of
from headgate.http.identity.identity import Identity
from headgate.http.identity.jwt import JWT

__all__ = ["JWT", "Identity", "checked_facts", "client_of", "hashed_api_key"]
