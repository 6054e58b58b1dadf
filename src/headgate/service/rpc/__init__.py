"""What the service's remote procedures do: messages in, messages out. Nothing in here knows a transport."""
