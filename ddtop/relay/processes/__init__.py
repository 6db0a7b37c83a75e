"""The processes of the job on this host, seen from outside through /proc and pidfds."""
