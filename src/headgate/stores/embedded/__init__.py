"""The embedded store: processes of one machine share counters through a Valkey that they start by themselves.

Each process has a `server_handle` on the server of a directory. The `server_supervisor`, a process of its own, runs the
server while any process uses it, and restarts it when it dies. `options` reads the URL, `binary` finds a server to run;
`sync` and `aio` are the Redis store on its socket. Linux and macOS. Needs `headgate[embedded]`.
"""
