"""The service over HTTP: checks as plain ASGI, made to be fast. The admin's API is an app of its own, behind it."""
