"""Replay: decides the requests of access logs with the real engine, on the log's clock, and reports what happened.

Reads logs, drives a `Limiter` in memory, and keeps statistics. It knows neither the terminal nor the service: `cli`
shows its reports, and `service` uses it to try out changed rules on recorded events.
"""
