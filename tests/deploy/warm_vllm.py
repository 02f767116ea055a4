"""One process that has vLLM and serves many tests: importing vLLM takes seconds, forking does not.

    PYTHON warm_vllm.py SERVER SOCKET                  loads hermes/deploy/vllm_alone.py (SERVER) and vLLM, then listens
    python warm_vllm.py --ask SOCKET SERVER [ARG ...]  is `PYTHON SERVER [ARG ...]` with the streams of this process

The fixture `warm_engine` (conftest.py) starts the first and gives tests a command that stands for PYTHON: the second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys

CASE = {"settings": {
    "max_num_batched_tokens": 64, "max_num_seqs": 4, "num_blocks": 20, "block_size": 16, "prefix_caching": True,
    "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0, "async_scheduling": True, "arrivals": "schedules"},
    "requests": [{"id": 0, "arrival_step": 0, "prompt_tokens": 20, "output_tokens": 2, "priority": 0, "blocks": []}]}


def listen(script: str, path: str) -> None:
    """Load the script and vLLM, answer `ready`, and fork a process for each connection."""
    found = importlib.util.spec_from_file_location("vllm_alone", script)
    assert found is not None
    assert found.loader is not None
    alone = importlib.util.module_from_spec(found)
    found.loader.exec_module(alone)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    alone.without_device()
    assert "steps" in alone.schedule_of(CASE), alone.schedule_of(CASE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)   # children are not waited for
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _address = server.accept()
            with connection:
                asked, streams, _flags, _from = socket.recv_fds(connection, 65536, 3)
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    serve(alone, json.loads(asked), list(streams), connection)
                for stream in streams:
                    os.close(stream)


def serve(alone, asked: list[str], streams: list[int], connection: socket.socket) -> None:   # alone: the script
    """Be the script with these arguments and streams, tell the connection the exit status, and end."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.argv[:], status = asked, 1
    try:
        alone.main()
        status = 0
    finally:
        try:   # the one that asked may be gone
            sys.__stdout__.flush()
            sys.__stderr__.flush()
            connection.sendall(bytes([status]))
        finally:
            os._exit(status)


def ask(path: str, asked: list[str]) -> int:
    """Let the process that listens fork one with the streams of this process; return its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        for number in (0, 1):   # the other process has them: their ends are its ends
            os.close(number)
        status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        os._exit(ask(sys.argv[2], sys.argv[3:]))
    listen(*sys.argv[1:])
