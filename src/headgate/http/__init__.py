"""Headgate for HTTP: who is asking, what they are told, and middleware for servers and frameworks."""
