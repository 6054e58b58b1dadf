"""Shards: a hot limit divided into parts that are kept and charged in different places of the store.

`sharded_store` wraps the store. `groups` and `search` choose the shards, and do no I/O; `headgate.core.shards` has the
arithmetic.
"""
