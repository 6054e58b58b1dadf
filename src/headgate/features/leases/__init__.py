"""Leases: slices of a key's quota that are charged to the store in advance and spent in this process.

`leases` decides from the tokens that are held, and does no I/O. `leasing` does the I/O for it, and `worker` fetches
slices in the background.
"""
