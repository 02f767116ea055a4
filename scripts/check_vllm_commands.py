"""Let the argument parser of an installed vLLM read the commands that `hermes export vllm` prints.

    python scripts/check_vllm_commands.py PYTHON SCENARIO ...

PYTHON is the interpreter of an environment with vLLM. Exit code 1 if it refuses a command, or reads another number
of devices, tokens or sequences than the scenario has.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

from hermes.deploy.vllm import commands_of
from hermes.scenario import load_scenario

READER = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:   # up to 0.32
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
read = []
for words in json.loads(sys.stdin.read()):
    found = parser.parse_args(["--model", *words])
    read.append([found.tensor_parallel_size, found.max_num_batched_tokens, found.max_num_seqs])
print(json.dumps(read))
"""


def main() -> int:
    python, *names = sys.argv[1:]
    commands = [(f"{name}: {group}", shlex.split(text)[2:]) for name in names
                for group, text in commands_of(load_scenario(name))]
    done = subprocess.run([python, "-c", READER], input=json.dumps([words for _, words in commands]),
                          capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-2000:])
        return 1
    wrong = 0
    for (label, words), read in zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True):
        flags = ("--tensor-parallel-size", "--max-num-batched-tokens", "--max-num-seqs")
        ours = [int(words[words.index(flag) + 1]) if flag in words else 1 for flag in flags]
        wrong += ours != read
        print(f"{label}: vLLM reads tp {read[0]}, {read[1]} tokens, {read[2]} sequences"
              f"{'' if ours == read else f', not {ours}'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
