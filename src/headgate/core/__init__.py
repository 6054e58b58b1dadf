"""The words of Headgate as types: Quota, Check, Outcome, Decision, clock, keys.

Pure and standard library only: nothing in here does I/O, and nothing knows of rules, stores or frameworks.
"""
