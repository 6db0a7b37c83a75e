"""What ddtop says of recorded jobs, as files: two versions of it are compared by `diff -r`."""
