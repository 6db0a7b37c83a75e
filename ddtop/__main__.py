"""`python -m ddtop`, the same as the `ddtop` command."""

from ddtop.cli import main

main()
