"""What was refused, or would have been: kept as events, off the path of the checks. No decision depends on it."""
