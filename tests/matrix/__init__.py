"""The versions of torch, Textual, pyzmq and msgspec that ddtop works with, tried one by one."""
