"""Leases, shards and regions: each wraps the programs of plans that have such rules. Other plans keep the store's own.

A wrapper is asked to compile a plan, as a store is. If the plan has none of its rules, it returns the program of the
store behind it, so that other plans pay nothing. `steps` runs the parts that do no I/O.
"""
