"""Nodes, a store and a network in virtual time, from seeds: what they must never do, whatever happens."""
