"""Facts as text: what a person or a program reads, without a terminal in sight.

Everything here is pure and imports neither textual nor rich, so that `ddtop status` and `ddtop
diagnose` start fast.
"""
