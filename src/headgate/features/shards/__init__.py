"""Shards: a hot limit divided into parts that are kept and charged in different places of the store.

`sharded_store` wraps the store. `search` finds a shard with room for one limit, and `groups` decides groups with such
limits; both do no I/O. `headgate.core.share` divides quotas.
"""
