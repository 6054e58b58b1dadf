"""Headgate in web servers: identity of clients, response headers, and middleware. Nothing here imports a framework
but the modules that are named after one."""
