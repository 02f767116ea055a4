"""What the scenarios of each reference set give, beside the model, the card and the load."""

from __future__ import annotations

__all__ = ["GIVEN"]

GIVEN = {
    "schedules": "the recorded requests and limits; no times",
    "splitwise": "splitwise-sim's tables of step times, pools and link; its answers are a simulator's",
    "cpu":
        "a profile fitted on single steps of other runs; async_scheduling false, blocks and limits as "
        "recorded",
    "rtx":
        "no front end and top_p false, since the engine was driven directly; 128 sequences, 2,048 tokens and "
        "the blocks as recorded; async_scheduling true; two engines behind least_loaded",
    "residency":
        "sequences, tokens and blocks as logged; capped cells: at most 256 requests in flight, in the order "
        "of their schedule, first and last minute cut",
    "blis":
        "engine vllm-0.15 (0.15.1), 128 sequences, the experiment's tokens a step, max_model_len 4096; 100 "
        "prompts asked in turn, which the prefix cache holds",
    "training":
        "as BLIS experiments, 2,048 tokens a step; runs called reasoning are left out (overloaded, lengths "
        "not stated)",
    "llm-d":
        "engine vllm-0.15 for 0.10, async_scheduling false, top_p false (vLLM's benchmark asks for greedy); "
        "utilization 0.95 and 0.9 with blocks of 128 in pools; pools behind least_loaded; sets called NCCL: "
        "all_reduce nccl; 1 user: the all-reduce found on one user's row",
    "lmbench":
        "engine vllm-0.15 for about 0.8.5, async_scheduling false; one server 8,192 tokens and 1,024 "
        "sequences, two 2,048 and 256 (inferred from the blocks that are left); routers random and "
        "round_robin, least_loaded for llm-d's; utilization 0.95, max_model_len 20000",
    "inferencex":
        "scheduler sglang with chunks of 32,768 and no radix cache, utilization 0.82, lengths drawn between "
        "0.8 and 1.0 of the nominal; host times of the newest vLLM; the first wave is included",
    "ml-energy":
        "async_scheduling false, prompts of 200 tokens, gamma lengths of answers (none is stated); sets called "
        "left out: watts of the card fitted again without the model",
}
