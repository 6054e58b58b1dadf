-- What wrk found, as one line of JSON after its own report. Latencies are in microseconds.
-- errors.status counts responses of 400 and above.

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "p99_ms": %.3f, ' ..
    '"errors": {"connect": %d, "read": %d, "write": %d, "timeout": %d, "status": %d}}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(99) / 1e3,
    errors.connect, errors.read, errors.write, errors.timeout, errors.status
  ))
end
