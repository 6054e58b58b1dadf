"""Leases, shards and regions: each wraps the programs of plans with rules that use it. Other plans are not affected.

A wrapper compiles a plan, as a store does. If the plan has none of its rules, it returns the program of the store
behind it, so that other plans cost no more. `steps` runs the parts that do no I/O.
"""
