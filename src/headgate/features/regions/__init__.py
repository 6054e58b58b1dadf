"""One limit over several regions: central, shares, synced counts.

`region` describes this region and the others. `division`, `grants`, `shares`, `counts` and `router` do no I/O: they
yield calls to the regions' stores, and `regional_store` makes them. `headgate.regions` has the public names.
"""
