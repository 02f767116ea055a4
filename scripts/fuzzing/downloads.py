"""A server on this machine that gives the bytes of files as its replies, for `hermes trace get`."""

from __future__ import annotations

import socketserver
import threading
from functools import cache
from pathlib import Path

__all__ = ["address", "write_reply"]

HEADER = "Timestamp,Session ID,Model,Request tokens,Response tokens,Log Type\n"


def write_reply(folder: Path) -> None:
    """Write a whole HTTP reply with a trace."""
    body = HEADER + "".join(f"{5 + i},s{i % 2},GPT-4,{100 + i},{5 + i},API log\n" for i in range(6))
    (folder / "trace.http").write_bytes(
        f"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = self.rfile.readline().split()
        while self.rfile.readline().strip():
            pass
        self.wfile.write(Path(asked[1].decode()).read_bytes())


@cache
def address() -> str:
    """Return the server's address, to which the path of a file is added. It runs as long as the process."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
