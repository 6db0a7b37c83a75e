"""Small mpi4py programs in the classes of the MPI Bugs Initiative, each faulty and correct."""
