"""Print the flags of `vllm serve`, read from the argument parser of an installed vLLM.

    PYTHON scripts/vllm_serve_flags.py > tests/data/vllm-serve-flags.json

PYTHON is an interpreter that has vLLM; HERMES is not needed there. `flags` has, by name without dashes, `value`,
`values` (one or more) or `switch` (nothing follows). `off` has the names that turn a switch off, with the switch, and
`short` those of one dash. `on` lists the switches that are on if left out, or as vLLM finds best.
"""

from __future__ import annotations

import json
import os


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    import vllm

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:   # up to 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags: dict[str, str] = {}
    off: dict[str, str] = {}
    short: dict[str, str] = {}
    on = []
    # the parser's table has names as well that an action does not show
    for name, action in make_arg_parser(FlexibleArgumentParser())._option_string_actions.items():
        first = next(other for other in action.option_strings if other.startswith("--"))[2:]
        if first == "help":
            continue
        if not name.startswith("--"):
            short[name[1:]] = first
            continue
        kind = "switch" if action.nargs == 0 else "values" if action.nargs in ("+", "*") else "value"
        word = name[2:]
        opposite = first.replace("disable-", "enable-", 1) if first.startswith("disable-") else first.replace(
            "enable-", "disable-", 1)
        if kind == "switch" and word != first and word in (f"no-{first}", opposite):
            off[word] = first
            continue
        flags[word] = kind
        if kind == "switch" and action.default is not False and word == first:
            on.append(word)
    print(json.dumps({
        "engine": f"vllm {vllm.__version__}", "flags": dict(sorted(flags.items())), "off": dict(sorted(off.items())),
        "short": dict(sorted(short.items())), "on": sorted(on)}, indent=0))


if __name__ == "__main__":
    main()
