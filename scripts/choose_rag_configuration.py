"""Choose the configuration of a RAG query by the memory that is free on this machine now, without a simulation.

    python scripts/choose_rag_configuration.py                         # free memory of the host, as for a CPU engine
    python scripts/choose_rag_configuration.py --gpu 0                 # of a GPU, by nvidia-smi
    python scripts/choose_rag_configuration.py --vllm http://localhost:8000    # free KV blocks of a vLLM server

The decision is `hermes/plugins/metis/decision.py`, which needs only the standard library.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import urllib.request
from pathlib import Path

from hermes.plugins.metis.decision import Lengths, Profile, Reading, choose, prune

KV_BYTES_PER_TOKEN = 131_072.0   # Mistral-7B: 2 x 32 layers x 8 heads x 128 x 2 bytes


def host_bytes() -> float:
    """Return the memory that Linux reports as available."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise SystemExit("expected MemAvailable in /proc/meminfo, found none")
    return 1024.0 * int(found[1])


def gpu_bytes(index: int) -> float:
    """Return the free memory of a GPU."""
    command = ["nvidia-smi", f"--id={index}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    return 2**20 * float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def vllm_reading(url: str, bytes_per_token: float) -> Reading:
    """Return a vLLM server's metrics: KV blocks and the share in use, sequences running and waiting."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/metrics", timeout=5) as answer:
        text = answer.read().decode()

    def label(name: str) -> int:
        found = re.search(rf'vllm:cache_config_info\{{[^}}]*\b{name}="(\d+)"', text)
        if found is None:
            raise SystemExit(f"expected {name} in vllm:cache_config_info, found none")
        return int(found[1])

    def gauge(*names: str) -> float:
        for name in names:
            found = re.search(rf"^vllm:{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
            if found is not None:
                return float(found[1])
        raise SystemExit(f"expected vllm:{names[0]}, found none")

    blocks, size = label("num_gpu_blocks"), label("block_size")
    free = blocks * (1 - gauge("kv_cache_usage_perc", "gpu_cache_usage_perc"))
    busy = int(gauge("num_requests_running") + gauge("num_requests_waiting"))
    return Reading(free * size * bytes_per_token, bytes_per_token, size, max(0, 256 - busy))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", type=int, help="number of a GPU")
    parser.add_argument("--vllm", help="URL of a vLLM server")
    parser.add_argument("--kv-bytes-per-token", type=float, default=KV_BYTES_PER_TOKEN)
    options = parser.parse_args()
    if options.vllm:
        reading = vllm_reading(options.vllm, options.kv_bytes_per_token)
    else:
        free = host_bytes() if options.gpu is None else gpu_bytes(options.gpu)
        reading = Reading(free, options.kv_bytes_per_token)
    tokens = reading.free_bytes / reading.bytes_per_token
    print(f"{reading.free_bytes / 1e9:.2f} GB free, {tokens:,.0f} tokens of KV")
    lengths = Lengths(chunk=1000, question=25, answer=40)
    for profile in (Profile(False, False, 1, (30, 60)), Profile(True, False, 3, (30, 60)),
                    Profile(True, True, 5, (60, 120))):
        for share in (1.0, 0.001):
            left = Reading(reading.free_bytes * share, reading.bytes_per_token, reading.block_tokens,
                           reading.free_seqs)
            choice = choose(prune(profile), lengths, left, joint=profile.joint)
            print(f"{'joint' if profile.joint else 'single'}, {'complex' if profile.complex else 'simple'}, "
                  f"{profile.pieces} pieces, {share:.1%} of it: {choice.configuration} ({choice.how}, "
                  f"{choice.need_bytes / 1e6:,.0f} MB)")


if __name__ == "__main__":
    main()
