"""Sources of rules. A source keeps valid snapshots in a `Holder`: see `headgate.rules.holder`.

Import these modules only where you use them: sources need more than the standard library.
"""
