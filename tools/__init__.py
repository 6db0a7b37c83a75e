"""Programs that people run by hand."""

import os

# An installed ddtop has its bytecode. Where this is set, a checkout would compile itself again in
# each process that is started and measured.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
