"""GPUs in the model: who owns which, and how busy each is."""
