"""Following a job without any text or terminal: sources, the model in a thread, requests,
recordings."""
