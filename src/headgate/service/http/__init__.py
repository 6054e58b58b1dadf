"""The service over HTTP: checks as plain ASGI, for speed. The admin API is a separate app behind it."""
