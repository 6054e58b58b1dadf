"""Replay: decides the requests of access logs with the real engine and the log's times, and reports the results.

It reads logs, drives a `Limiter` in memory, and keeps statistics. It knows neither the terminal nor the service: `cli`
shows its reports, and `service` uses it to try changed rules on recorded events.
"""
