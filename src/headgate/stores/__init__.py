"""Stores: they keep the state of every key, and decide groups of checks atomically.

Stores know Checks, never Rules. `protocol` defines the interface of a store, `memory` and `redis` implement it, and
`urls` opens a store from its URL.
"""
