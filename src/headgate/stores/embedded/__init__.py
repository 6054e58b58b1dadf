"""The embedded store: processes of one machine share counters through a Valkey server that they start themselves.

Each process has a `server_handle` on the server of a directory. The `server_supervisor`, a separate process, runs the
server while any process uses it, and restarts it when it dies. `options` parses the URL, and finds a server to run;
`sync` and `aio` are the Redis store on its socket. Linux and macOS. Needs `headgate[embedded]`.
"""
