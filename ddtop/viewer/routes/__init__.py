"""The routes by which a viewer gets its facts: a relay on this host, a port, ssh, or processes
without ddtop."""
