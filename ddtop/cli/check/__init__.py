"""`ddtop check -- torchrun ...`: what would keep a job from starting, before it starts."""
