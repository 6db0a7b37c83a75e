"""Hosts and jobs as rows."""
