"""Where a viewer gets its facts from: a relay on this host, a port, ssh, or processes without
ddtop."""
