"""MPI through mpi4py: what this rank is about to call, on the state page before the call."""
