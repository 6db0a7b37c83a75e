"""The English of a verdict: what the findings of `ddtop.diagnosis` are in words."""
