"""What becomes of the frames: the model on a thread, its history, requests, recordings."""
