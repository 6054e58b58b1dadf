"""Headgate in web servers: who is asking, what they are told, and middleware. Nothing here imports a framework
but the modules that are named after one."""
