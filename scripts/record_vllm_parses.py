"""Record how vLLM's own argument parser takes words: unique beginnings, `=`, fields of JSON, settings files.

    PYTHON scripts/record_vllm_parses.py FOLDER > tests/data/vllm-parses.json

FOLDER has vllm/utils/argparse_utils.py of a wheel (`pip download --no-deps vllm==0.33.0`, unzip); PYTHON has PyYAML
and regex. The parser's class is vLLM's, its flags are those of tests/data/vllm-serve-flags.json, recorded from vLLM.
Each case has the words behind `vllm serve`, the settings files, and what was parsed, or why the words were refused.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import random
import sys
import tempfile
import types
from pathlib import Path

FLAGS = json.loads((Path(__file__).parents[1] / "tests" / "data" / "vllm-serve-flags.json").read_text())
SEED, CASES = 20261130, 160
BY_HAND: list[tuple[list[str], dict[str, str]]] = [
    (["m", "--max-num-seq", "96"], {}), (["m", "--tensor-parallel", "2"], {}), (["m", "--max-num", "9"], {}),
    (["m", "--max_num_seq=96", "-tp", "2", "-tp=4"], {}), (["m", "--enable-prefix"], {}),
    (["m", "--no-enable-pref"], {}),
    (["m", "-O3"], {}), (["m", "-O", "2"], {}), (["m", "-O=1"], {}), (["m", "--tp", "2"], {}), (["m", "-t", "2"], {}),
    (["m", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', "--spec-tok", "2"], {}),
    (["m", "--speculative-config.method", "ngram", "--speculative_config.num_speculative_tokens", "4"], {}),
    (["m", "--speculative-config.method", "ngram", "--speculative-config", '{"method": "mtp"}'], {}),
    (["m", "--compilation-config.cudagraph_capture_sizes+", "1,2"], {}), (["--model", "m", "--port", "1"], {}),
    (["--config", "c.yaml"], {"c.yaml": "model: m\nmax-num-seqs: 8\n"}),
    (["m", "--max-num-seqs", "4", "--config", "c.yaml"], {"c.yaml": "max-num-seqs: 8\nblock_size: 32\n"}),
    (["m", "--config", "c.yaml"],
     {"c.yaml": "enable-prefix-caching: false\nenforce-eager: false\nasync-scheduling: true\n"}),
    (["m", "--config", "c.yaml"], {"c.yaml": "kv-transfer-config: {kv_connector: NixlConnector, kv_role: kv_both}\n"}),
    (["m", "--config", "c.yaml"], {"c.yaml": "cudagraph-capture-sizes: [1, 2, 4]\nno-enable-prefix-caching: true\n"}),
    (["m", "--config=c.yaml"], {"c.yaml": "max-num-seqs: 8\n"}),
]


def made(parser_class: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return a parser of vLLM's class with its flags, which keeps only what is given."""
    parser = parser_class(exit_on_error=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("command")
    parser.add_argument("model_tag", nargs="?")
    short: dict[str, list[str]] = {}
    for name, flag in FLAGS["short"].items():
        short.setdefault(flag, []).append(f"-{name}")
    for flag, kind in FLAGS["flags"].items():
        words = [f"--{flag}", *short.get(flag, [])]
        if kind == "switch":
            parser.add_argument(*words, dest=flag, action="store_const", const="true")
        else:
            parser.add_argument(*words, dest=flag, nargs="+" if kind == "values" else None)
    for name, flag in FLAGS["off"].items():
        parser.add_argument(f"--{name}", dest=flag, action="store_const", const="false")
    return parser


def drawn() -> list[tuple[list[str], dict[str, str]]]:
    """Return cases with beginnings of random flags."""
    rng, found = random.Random(SEED), list(BY_HAND)
    names = [*FLAGS["flags"], *FLAGS["off"]]
    while len(found) < CASES:
        flag = rng.choice(names)
        short = flag[:rng.randint(min(4, len(flag)), len(flag))]
        word = "--" + (short.replace("-", "_") if rng.random() < 0.3 else short)
        kind = FLAGS["flags"].get(flag, "switch")
        value = {"switch": [], "value": ["7"], "values": ["7", "8"]}[kind]
        found.append((["m", *([f"{word}=7"] if kind == "value" and rng.random() < 0.3 else [word, *value])], {}))
    return found


def main() -> None:
    logging.disable(logging.CRITICAL)
    vllm, logger = types.ModuleType("vllm"), types.ModuleType("vllm.logger")
    vllm.__path__ = [str(Path(sys.argv[1]) / "vllm")]
    logger.init_logger = lambda name: types.SimpleNamespace(   # type: ignore[attr-defined]
        warning=print_nothing, error=print_nothing, warning_once=print_nothing)
    sys.modules |= {"vllm": vllm, "vllm.logger": logger}
    sys.path.insert(0, sys.argv[1])
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    cases = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for words, files in drawn():
            for name, text in files.items():
                Path(name).write_text(text)
            case: dict[str, object] = {"words": words, **({"files": files} if files else {})}
            sys.stderr = said = io.StringIO()
            try:
                parsed = vars(made(FlexibleArgumentParser).parse_args(["serve", *words]))
                case["parsed"] = {key: own for key, own in sorted(parsed.items()) if key != "command"}
            except (SystemExit, argparse.ArgumentError) as error:
                text = f"{error} {said.getvalue()}"
                case["refused"] = "ambiguous" if "ambiguous" in text else "unrecognized"
                assert case["refused"] in text, text
            sys.stderr = sys.__stderr__
            cases.append(case)
    print("\n".join(["[", ",\n".join(map(json.dumps, cases)), "]"]))


def print_nothing(*words: object) -> None:
    pass


if __name__ == "__main__":
    main()
