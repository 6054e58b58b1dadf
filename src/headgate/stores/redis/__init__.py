"""The Redis store: Redis 6.2 or later, or Valkey. Exact across any number of processes.

`script` is the sans-I/O core: it writes the command and reads the reply. `sync` and `aio` carry them to a server
and back. Needs `headgate[redis]`.
"""
