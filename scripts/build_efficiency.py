"""Fit the efficiency factors that ship in hw_profiles/efficiency on the kernel tables of aiconfigurator-core 0.12.0.

    python scripts/build_efficiency.py --python VENV/bin/python --configs FOLDER [--steps FOLDER] [CARD ...]

VENV is any environment with aiconfigurator-core==0.12.0; FOLDER holds mixtral-8x7b/config.json and
qwen3-30b-a3b/config.json (Hugging Face), which the package does not find offline under their published names. Steps are
imported once into --steps and used again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from hermes.hardware.efficiency import Efficiency, EfficiencyFile, load_efficiency
from hermes.hardware.fitted.profile import dump_yaml

ROOT = Path(__file__).resolve().parents[1]
LLAMA_8B, LLAMA_70B, QWEN_32B = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-32B"
CARDS = {  # device description -> system of aiconfigurator-core
    "h100-sxm": "h100_sxm", "h200": "h200_sxm", "a100-80gb": "a100_sxm", "l40s": "l40s", "b200": "b200_sxm",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
DENSE = [(LLAMA_8B, 1), (LLAMA_8B, 4), (LLAMA_70B, 2), (LLAMA_70B, 4), (LLAMA_70B, 8), (QWEN_32B, 2), (QWEN_32B, 8)]
MIXTURES = [("mixtral-8x7b", 2), ("qwen3-30b-a3b", 1)]
NO_FP8 = {"a100-80gb"}


def hermes(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hermes.cli", *arguments], check=True, cwd=ROOT)


def steps_of(card: str, folder: Path, python: str, configs: Path) -> list[Path]:
    """Return the imported steps of a card, one file per model, parallelism and precision."""
    out = []
    for model, tp in DENSE + [(str(configs / name), tp) for name, tp in MIXTURES]:
        for dtype in ("bf16",) if card in NO_FP8 else ("bf16", "fp8"):
            path = folder / f"{card}-{Path(model).name.lower()}-tp{tp}-{dtype}.yaml"
            if not path.exists():
                hermes("profile", "import", "aiconfigurator", "--model", model, "--system", CARDS[card], "--tp",
                       str(tp), "--dtype", dtype, "--python", python, "-o", str(path))
            out.append(path)
    return out


def build_rtx_4090(tables: Path, folder: Path) -> None:
    """Fit the RTX 4090, which aiconfigurator lacks, to operator tables of vLLM 0.19.0
    (casys-kaist/LLMServingSim, MIT)."""
    steps, out = folder / "rtx-4090-layerwise.yaml", ROOT / "hw_profiles" / "efficiency" / "rtx-4090.yaml"
    hermes("profile", "import", "layerwise", str(tables), "--model", "llama-3.1-8b", "-o", str(steps))
    hermes("fit-roofline", str(steps), "--device", "rtx-4090", "-o", str(out))
    file, links = load_efficiency(str(out)), load_efficiency("l40s").factors.all_reduce
    source = ("operator tables of vLLM 0.19.0 on an RTX 4090, Llama-3.1-8B in bf16, measured eagerly "
              "(github.com/casys-kaist/LLMServingSim, MIT), composed into steps")
    dump_yaml(file.model_copy(update={
        "sources": [source], "factors": file.factors.model_copy(update={"all_reduce": links}),
        "notes": [file.notes[0], "experts: no mixture was measured; as ffn",
                  "all_reduce: not measured; that of the L40S, another card on PCIe without peer access"],
    }), out, "Shares of the peak rates of rtx-4090 that classes of operators reach.")


def write_generic() -> None:
    """Write medians over the cards, for a device unlike all of them."""
    files = [load_efficiency(card) for card in CARDS]
    sets = [file.factors.model_dump() for file in files]
    eights = [file.factors_8bit.model_dump() for file in files if file.factors_8bit is not None]
    generic = EfficiencyFile(
        format="hermes-efficiency/1", name="generic", sources=list(dict.fromkeys(s for f in files for s in f.sources)),
        fitted_by="scripts/build_efficiency.py", factors=Efficiency(**median(sets)),
        factors_8bit=Efficiency(**median(eights)),
        notes=[f"median over {', '.join(CARDS)}; all-reduces of those with NVLink (h100-sxm, h200, a100-80gb, b200)"],
    )
    dump_yaml(generic, ROOT / "hw_profiles" / "efficiency" / "generic.yaml",
              "Shares of the peak rates: the median of measured cards.")


def median(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        linked = [value for value in values if "all_reduce" not in value or value["all_reduce"][1]["bandwidth"] > 0.3]
        return {key: median([v[key] for v in (linked if key == "all_reduce" else values)]) for key in first}
    if isinstance(first, list):
        return [median(list(parts)) for parts in zip(*values, strict=True)]
    if isinstance(first, int):
        return first
    return float(f"{statistics.median(values):.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cards", nargs="*", default=list(CARDS), metavar="CARD")
    parser.add_argument("--python", default=sys.executable, help="interpreter with aiconfigurator-core")
    parser.add_argument("--configs", type=Path, required=True)
    parser.add_argument("--rtx-4090", type=Path, help="profile folder of the RTX 4090 in casys-kaist/LLMServingSim")
    parser.add_argument("--steps", type=Path, default=Path("steps"))
    options = parser.parse_args()
    options.steps.mkdir(parents=True, exist_ok=True)
    for card in options.cards:
        paths = steps_of(card, options.steps, options.python, options.configs)
        hermes("fit-roofline", *map(str, paths), "--device", card, "-o",
               str(ROOT / "hw_profiles" / "efficiency" / f"{card}.yaml"))
    if options.rtx_4090 is not None:
        build_rtx_4090(options.rtx_4090, options.steps)
    write_generic()


if __name__ == "__main__":
    main()
