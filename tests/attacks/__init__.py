"""Attacks on a node's ports: floods of each kind of frame, and noise. Shared by the tests and by `make chaos`."""
