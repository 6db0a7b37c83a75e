"""One module for each command. No command imports another: shared code is in `ddtop/cli`."""
