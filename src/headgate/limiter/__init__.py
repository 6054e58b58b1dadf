"""The check itself: plan, execute, failure policy. `Limiter` and `AsyncLimiter` differ in their I/O only."""
