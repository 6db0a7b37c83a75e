"""What ddtop costs and how fast it is, measured on real processes: `python -m tools.benchmarks`.

These are not tests: a time depends on the machine and on what else runs there, so nothing here is
collected by pytest.
"""
