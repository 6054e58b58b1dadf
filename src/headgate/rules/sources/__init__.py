"""Where rules come from. A source keeps a `Holder` supplied with good snapshots: see `headgate.rules.holder`.

Imported only by those who use one, as sources need more than the standard library.
"""
