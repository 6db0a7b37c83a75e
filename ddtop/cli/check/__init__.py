"""`ddtop check -- torchrun ...`: finds what would prevent a job from starting, before it is
started."""
