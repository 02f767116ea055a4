"""Break one rule of SGLang's scheduler at a time, and see which recordings notice.

`python tests/docs/sglang_mutations.py` writes the table of docs/background/sglang.md; `test_sglang_page.py` checks that
every mutation is noticed by the recording that it names.
"""

from __future__ import annotations

from pathlib import Path

from mutations import Mutation, table

from hermes.memory.radix import RadixPool, RadixTree
from hermes.schedulers.sglang import Budget, SglangScheduler
from hermes.schedulers.sglang_overlap import OverlapSglangScheduler

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "sglang-schedules"
TABLE = RECORDINGS.parents[2] / "docs" / "background" / "sglang" / "broken-rules.csv"
S, B, P, T, A = SglangScheduler, Budget, RadixPool, RadixTree, OverlapSglangScheduler

MUTATIONS = [
    Mutation("3", "lpm puts prompts that begin alike side by side", S, "_sort_by_prefix", r'float\("inf"\)', "0",
             "lpm-slots"),
    Mutation("3", "lpm sorts a long queue as well", S, "_sort_waiting", r"len\(waiting\) > LONGEST_SORTED_QUEUE",
             "False", "lpm-long-queue"),
    Mutation("3", "waiting prompts' prefixes are not used", S, "_sort_waiting", r"% REFRESH_INTERVAL == 0", "== -1",
             "prefixes-refresh"),
    Mutation("3", "dfs-weight takes the lightest subtree first", S, "_sort_by_prefix", r"_depth_first\(.*\)\)",
             "_depth_first(tree.tree.root, nodes)[::-1])", "dfs-weight"),
    Mutation("4", "a request that does not fit is tried in every step", S, "_prefill_batch",
             r"self\.full, self\.stopped = True, int\(Reason\.KV_MEMORY\)", "pass", "prefixes-retract-page16"),
    Mutation("4", "the first prefill batch leaves the flag", S, "complete",
             r"if self\.chunk is not None or plan\.decodes or not group\.n:", "if False:", "tight-retract"),
    Mutation("5", "one request more than `max_running_requests` runs", S, "_prefill_batch",
             r"self\.max_num_seqs - running", "self.max_num_seqs - running + 1", "few-slots"),
    Mutation("6", "nothing is reserved for running requests", S, "_reserved", r"(?s)return float_sum.*", "return 0",
             "tight"),
    Mutation("6", "a request may take the last token", S, "_join", r"n \+ more \+ page < ", "n + more + page <= ",
             "even-page16"),
    Mutation("6", "the matched prefix counts as evictable", S, "_join", r"budget\.left - pinned", "budget.left",
             "prefixes-tight-page16"),
    Mutation("7", "with ignore_eos the end of each request is not looked at", S, "_join",
             r"self\.ignore_eos and node is None:\n", "False:\n", "no-radix-ignore-eos"),
    Mutation("8", "chunks end anywhere in a page", S, "_join", r"budget\.chunk // page \* page", "budget.chunk",
             "mixed-page16"),
    Mutation("8", "a chunked request waits behind others", S, "_next_chunk", r"budget\.take\(limit, 0\)", "pass",
             "chunked-small"),
    Mutation("8", "`max_prefill_tokens` does not end a batch", B, "take", r"self\.input -= tokens", "pass",
             "unchunked"),
    Mutation("10", "the request with most output tokens is retracted", S, "_retract", r"reverse=True", "reverse=False",
             "tight-page16-retract"),
    Mutation("10", "retraction keeps the order of running", S, "_retract", r"seq\.run_order = self\.num_admissions",
             "pass", "mixed-tight"),
    Mutation("10", "a retracted request waits in front", S, "_take_back", r"self\.waiting\.push\(seq\)",
             "self.waiting.push_preempted(seq)", "prefixes-retract"),
    Mutation("10", "retraction makes no room for the next steps", S, "_retract", r"self\._make_room\(.*\)", "pass",
             "prefixes-retract"),
    Mutation("11", "the ratio does not fall", S, "complete", r"self\.ratio - self\.decay", "self.ratio", "plain"),
    Mutation("11", "the ratio stays after idle times", S, "plan", r"self\.ratio = self\.init_ratio[^\n]*", "pass",
             "idle-gaps"),
    Mutation("11", "retraction leaves the ratio", S, "_retract", r"self\.ratio = min", "min", "tight-page16-retract"),
    Mutation("12", "running requests join prefill batches last", S, "complete",
             r"seq\.run_order = self\._first \+ place", "pass", "mixed-tight"),
    Mutation("12", "decodes take nothing from a mixed batch's chunk", S, "_prefill_batch",
             r"running if self\.mixed else 0", "0", "mixed"),
    Mutation("14", "a whole prompt can match", S, "_join", r"seq\.num_tokens - 1\)", "seq.num_tokens)", "prefixes"),
    Mutation("15", "answers do not enter the tree", S, "_results", r"self\._checkpoint\(prefills, finished\)",
             "self._checkpoint(prefills, [])", "tight"),
    Mutation("15", "the tree is not cut between prompt and answer", P, "commit", r"if 0 < prompt < end:", "if False:",
             "repeated-retract"),
    Mutation("17", "uses of a leaf since it could be evicted do not count", T, "evict", r"if node\.time > time:",
             "if False:", "prefixes-tight"),
    Mutation("18", "each page of a decode batch is evicted when it is needed", S, "_decode_batch",
             r"self\.pool\.block_size > 1", "False", "tight-page16-retract"),
    Mutation("19", "a match does not count as a use", T, "match", r"used\.time = now", "pass", "prefixes-retract"),
    Mutation("19", "a cut does not count as a use", T, "_split", r"child\.time = self\._tick\(\)", "pass",
             "prefixes-tight"),
    Mutation("20", "a request that ends is not seen any more", A, "_results",
             r"self\.ending = dict\.fromkeys\(finished, False\)", "self.full = self.full and not finished",
             "overlap-slots"),
    Mutation("20", "output tokens in flight count", A, "_outputs", r"n - \(late is None or seq in late\)", "n",
             "overlap-prefixes"),
    Mutation("20", "prompts enter the tree before the next plan", A, "plan", r"results = bool\(self\._computed\)",
             "results = bool(self._computed); self._process()", "overlap-prefixes"),
    Mutation("21", "requests that end by their length decode once more", A, "_leave_ending",
             r"self\.max_new_tokens\(seq\) > seq\.target_tokens", "True", "overlap"),
    Mutation("21", "requests that stop early do not decode once more", A, "_leave_ending",
             r"self\.max_new_tokens\(seq\) > seq\.target_tokens", "False", "overlap-early-stop"),
    Mutation("22", "requests are retracted although others end", A, "_plan_unknowing",
             r"len\(over\) < len\(self\.ending\)", "False", "overlap-retract"),
    Mutation("23", "the KV of the last token is dropped", A, "_process", r"if seq in self\.overrun:", "if False:",
             "overlap-early-stop"),
    Mutation("24", "a retracted request keeps its token in flight", A, "_lose_in_flight",
             r"seq\.num_tokens -= 1", "pass", "overlap-retract"),
    Mutation("25", "a running request that is given up leaves at once", S, "_stays",
             r"if seq in self\.running and seq is not self\.chunk:", "if False:", "abort"),
    Mutation("25", "the last chunk of a request that is given up enters the tree", S, "_checkpoint",
             r" and not self\._knows\(chunk\)", "", "abort-chunked"),
    Mutation("25", "with overlap it is known a batch earlier", S, "_knows", r"int\(self\.asynchronous\)", "0",
             "abort-overlap-chunked"),
    Mutation("25", "with overlap its first token is not its last", A, "complete", r"self\._end_with_next\(seq\)",
             "pass", "abort-overlap"),
]


def page_table() -> str:
    return table(MUTATIONS, RECORDINGS, {".": "noticed by, of {}"})


if __name__ == "__main__":
    TABLE.write_text(page_table(), encoding="utf-8")
