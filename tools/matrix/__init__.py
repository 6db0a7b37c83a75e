"""Tries the versions of torch, Textual, pyzmq and msgspec that ddtop works with, one by one."""
