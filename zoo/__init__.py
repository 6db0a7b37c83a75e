"""Is the verdict right? Small real jobs with and without a fault, and what a tool says of each.

Each file in `programs` is a program, or a family of them, with its stories: `python -m zoo`
starts the jobs one after the other and asks a tool. A program prints `{"fault_unix_ns": ...}` when
its fault begins. Right is the expected kind about exactly the expected ranks; every other critical
finding, at any time, is wrong.
"""
