"""The service's remote procedures: messages in, messages out. No module here knows a transport."""
