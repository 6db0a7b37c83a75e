"""Jobs on several hosts: which relay is the hub, how leaves find it, and what they send."""
