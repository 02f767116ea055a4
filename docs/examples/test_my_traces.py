from my_traces import AccessLog

from hermes.testing.workload import TraceImporterContract


class TestAccessLog(TraceImporterContract):
    text = """
{"t": 10.5, "in": 300, "out": 20}
{"t": 10.75, "in": 40, "out": 1}
{"t": 12, "in": 5, "out": 99}
"""

    def make(self):
        return AccessLog()
