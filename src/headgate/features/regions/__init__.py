"""One limit over several regions: central, shares, synced counts.

`region` says who we are and who the others are. `division`, `grants`, `shares`, `counts` and `router` do no I/O: they
yield what to ask of which region's store, and `regional_store` asks it. `headgate.regions` has the public names.
"""
