"""The MPI program of the tests, and how mpirun starts it."""

import shutil
import sys
from pathlib import Path

BESIDE = Path(sys.executable).parent / "mpirun"


MPIRUN = str(BESIDE) if BESIDE.is_file() else shutil.which("mpirun")


PROGRAM = Path(__file__).parent / "programs" / "simulating.py"


# Open MPI refuses root and more ranks than cores unless it is told to; MPICH does not ask.
ANY_HOST = {
    f"{name}_ALLOW_RUN_AS_ROOT{end}": 1 for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
} | {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": 1,
}
