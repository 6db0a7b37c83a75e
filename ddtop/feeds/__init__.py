"""Where the frames of a job come from: a relay, another host, or processes without ddtop."""
