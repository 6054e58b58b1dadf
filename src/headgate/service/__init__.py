"""The service: Headgate behind gRPC, REST, Envoy's protocol and forward-auth. Adapters only; nothing decides here."""
