"""Records refusals, and what shadow rules would have refused, in the background. No decision depends on it."""
