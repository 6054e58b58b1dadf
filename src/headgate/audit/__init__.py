"""Records refusals, and what shadow rules would have refused, as events in the background. No decision depends on
it."""
