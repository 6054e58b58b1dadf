"""Rules: who is limited, and by how much. `Rule`, `Snapshot`, and the sources that rules come from."""
