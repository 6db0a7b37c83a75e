"""The tools, one file each, behind the protocol of `zoo/tool.py`."""

from __future__ import annotations

from zoo.tool import Tool
from zoo.tools.ddtop import Ddtop
from zoo.tools.ddtop_outside import DdtopOutside
from zoo.tools.flight_recorder import FlightRecorder
from zoo.tools.py_spy import PySpy
from zoo.tools.traceml import TraceML

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (Ddtop(), DdtopOutside(), FlightRecorder(), PySpy(), TraceML())
}
