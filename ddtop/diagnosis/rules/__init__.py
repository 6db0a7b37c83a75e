"""One file a rule. A rule imports no other rule; `ddtop/diagnosis/table.py` lists them all."""
