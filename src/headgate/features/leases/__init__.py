"""Leases: slices of a key's quota that were charged to the store beforehand, and are spent here.

`leases` decides from what is held, and does no I/O. `leasing` does the I/O that it asks for, and `worker` fetches
slices in the background.
"""
