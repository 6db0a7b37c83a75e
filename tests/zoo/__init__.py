"""Is the verdict right? Real jobs with and without a fault, and what a viewer reads about each at
every half second.

A program says `{"fault_unix_ns": ...}` when its fault begins. Right is a finding of the expected
kind about exactly the expected ranks; every other critical finding, at any time, is wrong.
"""
