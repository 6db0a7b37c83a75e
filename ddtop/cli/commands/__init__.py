"""One module for each command. No command imports another: what they share lies in `ddtop/cli`."""
