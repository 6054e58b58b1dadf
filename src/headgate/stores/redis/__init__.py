"""The Redis store: Redis 6.2 or later, or Valkey. Exact across any number of processes.

`script` is the core without I/O: it writes the command and reads the reply. `sync` and `aio` send them to a server and
back. Needs `headgate[redis]`.
"""
