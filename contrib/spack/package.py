"""A Spack package: copy it to PACKAGES/py-ddtop/package.py of a repository of your own."""

from spack.package import *


class PyDdtop(PythonPackage):
    """A live terminal monitor for distributed PyTorch and MPI jobs."""

    pypi = "ddtop/ddtop-0.1.0.tar.gz"
    license("Apache-2.0")

    version("0.1.0")
    variant("viewer", default=True, description="The commands and the dashboard")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("py-hatch-vcs", type="build")
    depends_on("py-pyzmq@26:", type=("build", "run"))
    depends_on("py-msgspec@0.18:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-textual@7.0:", type=("build", "run"), when="+viewer")
    depends_on("py-click@8.1:", type=("build", "run"), when="+viewer")
    depends_on("py-nvidia-ml-py@12.535.108:", type=("build", "run"), when="+viewer")
