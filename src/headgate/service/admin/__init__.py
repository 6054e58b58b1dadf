"""The admin's API: rules, users, tokens and the change log over HTTP, for people and programs with a token.

A FastAPI app of its own. What a request means is worked out here; what it changes, `headgate.db` does.
"""

from headgate.service.admin.app import admin_app

__all__ = ["admin_app"]
