"""MPI through mpi4py: what this rank is about to call, written on the state page before the call."""
