"""MPI through mpi4py: each call is written to the state page before it is made."""
