"""Shards: a hot limit divided into parts, which are kept and charged in different places of the store.

`sharded_store` is a store in front of the store. `groups` and `search` decide where to look, and do no I/O;
`headgate.core.shards` has the arithmetic.
"""
