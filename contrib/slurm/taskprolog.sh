#!/bin/sh
# TaskProlog of slurm.conf: Slurm puts what this prints as "export NAME=value" into each task.
# Every job whose Python has ddtop is watched then. A job that has set DDTOP itself keeps it.
[ -n "${DDTOP-}" ] || echo "export DDTOP=1"
