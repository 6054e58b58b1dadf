"""The check itself: plan, execute, failure policy. `Limiter` and `AsyncLimiter` differ only in their I/O."""
