"""The tools, one file each, behind the protocol of `tools/zoo/tool.py`."""

from __future__ import annotations

from tools.zoo.tool import Tool
from tools.zoo.tools.ddtop import Ddtop
from tools.zoo.tools.ddtop_outside import DdtopOutside
from tools.zoo.tools.flight_recorder import FlightRecorder
from tools.zoo.tools.py_spy import PySpy
from tools.zoo.tools.traceml import TraceML

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (Ddtop(), DdtopOutside(), FlightRecorder(), PySpy(), TraceML())
}
