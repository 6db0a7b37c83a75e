"""Stacks of all ranks of this host: requests, the dump signal, py-spy."""
