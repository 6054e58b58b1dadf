"""The messages that go over the wire, made of proto/ by scripts/protos. They stay in `headgate.service`."""
