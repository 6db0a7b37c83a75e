"""The only room that knows ZeroMQ."""
