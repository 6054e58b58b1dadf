"""The admin API: rules, users, tokens and the change log over HTTP, for callers with a token.

It is a FastAPI app. It interprets requests; `headgate.db` makes the changes.
"""

from headgate.service.admin.app import admin_app

__all__ = ["admin_app"]
