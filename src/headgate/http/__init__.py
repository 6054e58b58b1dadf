"""Headgate in web servers: client identity, response headers and middleware. Only the modules that are named after a
framework import one."""
