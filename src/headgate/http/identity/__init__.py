"""The identity of a request's client, as facts: address, user, API key, tenant and tier.

Middleware takes an `Identity`. No module here knows a framework. A request's claims about itself are ignored unless
they are proved, or made by a proxy that the operator trusts.
"""

from headgate.http.identity.api_key import hashed_api_key
from headgate.http.identity.facts import checked_facts, client_of
from headgate.http.identity.identity import Identity
from headgate.http.identity.jwt import JWT

__all__ = ["JWT", "Identity", "checked_facts", "client_of", "hashed_api_key"]
