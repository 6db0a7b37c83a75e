"""Which rank waits for which: sequence numbers, calls, and where chains of waits end."""
