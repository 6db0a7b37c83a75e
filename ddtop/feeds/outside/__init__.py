"""Jobs that were started without ddtop: /proc, stacks by py-spy, sockets, GPUs."""
