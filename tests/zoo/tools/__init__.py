"""The tools, one file each, behind the protocol of `tests/zoo/tool.py`."""

from __future__ import annotations

from tests.zoo.tool import Tool
from tests.zoo.tools.ddtop import Ddtop
from tests.zoo.tools.ddtop_outside import DdtopOutside
from tests.zoo.tools.flight_recorder import FlightRecorder
from tests.zoo.tools.py_spy import PySpy
from tests.zoo.tools.traceml import TraceML

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (Ddtop(), DdtopOutside(), FlightRecorder(), PySpy(), TraceML())
}
