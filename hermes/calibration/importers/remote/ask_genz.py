"""Price batches with GenZ (genz-llm), in the interpreter that has it.

    python ask_genz.py REQUEST.json ANSWER.json

Prefills and mixed steps use `chunked_moddeling` (as spelt there), which takes (past, new) of each prompt and the
context of each decode; without cached tokens it agrees with `prefill_moddeling`. Decodes use `decode_moddeling`, whose
time does not grow with the batch. The result's key `Latency` holds milliseconds; its attribute of that name is 0.
"""

from __future__ import annotations

import warnings

from serving import price_all, serve  # type: ignore[import-not-found]  # run as a file: from its own folder

MS_PER_S = 1e3


def answer(request: dict[str, object]) -> dict[str, object]:
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
        found = decode_moddeling(batch_size=batch, input_tokens=context, output_tokens=0, Bb=1, **options)
        return float(found["Latency"]) / MS_PER_S

    def mixed(batch: int, new: int, past: int, decodes: int, context: int, _longest: int) -> float:
        found = chunked_moddeling(
            prefill_kv_sizes=[(past, new)] * batch, decode_kv_sizes=[context] * decodes, **options
        )
        return float(found["Latency"]) / MS_PER_S

    prefill(1, 128, 0)  # an unknown model, or one that does not fit, fails here with a reason
    functions = {"prefill": prefill, "decode": decode, "mixed": mixed}
    return {"seconds": price_all(functions, request["batches"]), "version": version("genz-llm")}


if __name__ == "__main__":
    serve(answer)
