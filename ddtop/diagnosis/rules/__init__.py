"""The rules, one per file. A rule imports no other rule. `ddtop/diagnosis/table.py` lists all of
them."""
