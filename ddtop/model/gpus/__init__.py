"""GPUs in the model: which rank uses which GPU, and how busy each is."""
