"""Where each framework keeps step, phase and loss: one file a framework, read, never changed."""
