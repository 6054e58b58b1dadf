"""Metrics, traces and logs for operators. Nothing here changes decisions."""
