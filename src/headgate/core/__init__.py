"""Headgate's domain types: Quota, Check, Outcome, Decision, clock, keys.

Only the standard library, and no I/O. Nothing in here knows about rules, stores or frameworks.
"""
