"""Price batches with GenZ (genz-llm), in the interpreter that has it.

    python ask_genz.py REQUEST.json ANSWER.json

Prefills and mixed steps use `chunked_moddeling`, which takes [(past, new), ...] and the contexts of the decodes one by
one (it agrees with `prefill_moddeling` without cached tokens). Pure decodes use `decode_moddeling`, which is faster for
large batches. Latency is in ms, under the key `Latency` (the attribute of that name returns 0).
"""

from __future__ import annotations

import warnings
from typing import Any

from serving import price_all, serve  # type: ignore[import-not-found]  # run as a file: from the folder beside it

MS_PER_S = 1e3


def answer(request: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    from GenZ import decode_moddeling
    from GenZ.LLM_inference.llm_chunked import chunked_moddeling

    warnings.simplefilter("ignore")
    options = {name: request[name] for name in ("model", "system_name", "system_eff", "bits")}
    options |= {
        "tensor_parallel": request["tp"], "parallelism_heirarchy": f"TP{{{request['tp']}}}_EP{{1}}_PP{{1}}",
    }

    def prefill(batch: int, new: int, past: int) -> float:
        return mixed(batch, new, past, 0, 0, 0)

    def decode(batch: int, context: int, _longest: int) -> float:
        result = decode_moddeling(batch_size=batch, input_tokens=context, output_tokens=0, Bb=1, **options)
        return float(result["Latency"]) / MS_PER_S

    def mixed(batch: int, new: int, past: int, decodes: int, context: int, _longest: int) -> float:
        result = chunked_moddeling(
            prefill_kv_sizes=[(past, new)] * batch, decode_kv_sizes=[context] * decodes, **options
        )
        return float(result["Latency"]) / MS_PER_S

    prefill(1, 128, 0)  # an unknown model or one that does not fit fails here, with a reason
    functions = {"prefill": prefill, "decode": decode, "mixed": mixed}
    return {"seconds": price_all(functions, request["batches"]), "version": version("genz-llm")}


if __name__ == "__main__":
    serve(answer)
