"""Stores: they keep the state of every key, and decide groups of checks atomically.

Stores know Checks, never Rules. `protocol` says what a store promises, `memory` and `redis` are two,
`urls` opens one from its URL.
"""
