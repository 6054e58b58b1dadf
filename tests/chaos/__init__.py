"""Faults under load, each with bounds that must hold: `python -m tests.chaos`; a shorter form is part of the tests."""
