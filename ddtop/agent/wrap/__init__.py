"""Wrappers around calls of torch and multiprocessing: they note the call and run the original."""
