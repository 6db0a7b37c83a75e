"""The one door to ZeroMQ."""
