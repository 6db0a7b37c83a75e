"""The documents of ddtop. A package only so that `python -m docs.generate` finds its own code."""
