"""Break one rule of the chunked scheduler at a time, and see which recorded schedules notice.

`python tests/docs/rule_mutations.py` writes the tables of docs/reference/schedules.md (it takes minutes);
`test_vllm_page.py` checks that every mutation is noticed by the recording it names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mutations import Mutation, Replacement, table

from evidence.schedules import vllm_replay
from hermes.clients.llm import LLMClient
from hermes.core.block_hashes import AdapterText
from hermes.memory import BlockPool, PrefixBlockPool
from hermes.memory.reference import ReferencePrefixPool
from hermes.schedulers.adapters import AdapterSlots
from hermes.schedulers.base import LLMScheduler
from hermes.schedulers.cadence import PrefillCadence
from hermes.schedulers.chunked import AsyncChunkedScheduler, ChunkedScheduler
from hermes.schedulers.drafts import Drafts
from hermes.schedulers.in_flight import InFlightScheduler
from hermes.schedulers.parts import WithParts
from hermes.schedulers.queues import FcfsQueue, KeyedQueue

SCHEDULES = Path(__file__).resolve().parents[1] / "data" / "vllm-schedules"
TABLES = SCHEDULES.parents[2] / "docs" / "reference" / "schedules"
FOLDERS = ("given", "recorded", "recorded-options", "async", "versions")
FIELDS = ("fields",)   # recordings of FIELD_MUTATIONS, which the others cannot notice


C, L, P, B = ChunkedScheduler, LLMScheduler, ReferencePrefixPool, BlockPool
A, K = AsyncChunkedScheduler, LLMClient
MUST_FIT = r"seq\.num_tokens if self\.whole_must_fit and held < seq\.num_tokens else held"
UNHASH = """dropped = self._returned = scheduled.pop(victim, 0)
            for block in pool._blocks[victim][victim.num_computed // pool.block_size:] if dropped else ():
                if pool._key_of[block] is not None:
                    pool._evict(block, pool._key_of[block])
"""

MUTATIONS = [
    Mutation("2", "running sequences do not use up the budget", C, "_literal_plan",
             r"budget -= n\n +rows -= n \+ spare", "pass", "given/small-budget-0"),
    Mutation("5", "one sequence more than `max_num_seqs` is admitted", C, "_admit_waiting",
             r"slots = self\.max_num_seqs", "slots = 1 + self.max_num_seqs",
             "recorded/few-seats-141"),
    Mutation("6", "a prompt over the budget is not cut", C, "_admit_waiting",
             r"if not self\.chunking:", "if True:", "given/small-budget-0"),
    Mutation("6", "chunking cannot be switched off", C, "_admit_waiting",
             r"if not self\.chunking:", "if False:", "recorded-options/no-chunking-311"),
    Mutation("7", "the cap holds for a lone request too (0.19.0)", C, "_cap",
             r"eligible <= 1", "eligible <= 0", "recorded/cap-tight-61"),
    Mutation("7", "the cap holds for admissions only", C, "_literal_plan",
             r"if 0 < cap < n:", "if False:", "given/long-prefill-cap-0"),
    Mutation("7", "the cap is not for recomputed outputs", C, "_literal_plan",
             r"if 0 < cap < n:", "if 0 < cap < n and seq.num_computed < seq.prompt_tokens:",
             "recorded/cap-recompute-291"),
    Mutation("7", "an adaptive cap does not adapt", C, "_cap", r"if self\.adaptive:", "if False:",
             "recorded-options/adaptive-cap-331"),
    Mutation("8", "admission needs blocks for the first chunk only", C, "_admit_waiting",
             MUST_FIT, "held", "given/priority-tight-0"),
    Mutation("8", "admission needs blocks for the next token as well", C, "_admit_waiting",
             MUST_FIT, "seq.num_tokens + 1", "recorded/all-mixed-11"),
    Mutation("9", "the watermark is ignored", C, "_admit_waiting", r"need \+= self\.watermark_blocks", "pass",
             "recorded-options/watermark-301"),
    Mutation("10", "a request that does not fit goes to the end of the queue", C, "_admit_waiting",
             r"if need > pool\.free_blocks:\n", "if need > pool.free_blocks:\n            self.waiting.push("
             "self.waiting.pop())\n", "given/fcfs-tight-0"),
    Mutation("11", "FCFS: the sequence that lacks blocks is the victim", C, "_literal_plan",
             r"else order\[-1\]", "else order[index]", "given/fcfs-tight-0"),
    Mutation("11", "priority: the last of running is the victim", C, "_literal_plan",
             r"victim = max\(order, .*\n", "victim = order[-1]\n", "given/priority-tight-0"),
    Mutation("11", "before 0.33 those behind a self-preemption still get their tokens", C, "__init__",
             r"self\.goes_on = .*", "self.goes_on = True", "recorded/urgent-last-272"),
    Mutation("12", "a victim's budget is not given back", C, "_literal_plan",
             r"budget \+= self\._returned", "pass", "recorded/returned-budget-1"),
    Mutation("12", "the share is computed anew from what a victim gave back", C, "_literal_plan",
             r"while not pool\.grow\(seq, computed \+ n \+ lookahead, known\):",
             "while not pool.grow(seq, computed + (n := min(max(n, seq.num_tokens - computed), budget)), known):",
             "recorded/returned-budget-1"),
    Mutation("12", "the loop skips one when a victim before it goes", C, "_literal_plan",
             r"index -= 1", "pass", "recorded/urgent-last-272"),
    Mutation("12", "a victim's blocks lose the hashes they got in this step", C, "_literal_plan",
             r"self\._returned = scheduled\.pop\(victim, 0\)\n", UNHASH,
             "recorded/uncomputed-hits-1"),
    Replacement("13", "a preempted request goes to the end of the queue", FcfsQueue, "push_preempted", "", "append",
                "given/fcfs-tight-0"),
    Mutation("13", "a preempted request loses its outputs", L, "preempt",
             r"seq\.num_computed = 0", "seq.num_computed = 0; seq.num_tokens = seq.prompt_tokens",
             "given/fcfs-tight-0"),
    Mutation("14", "admission also in a step that preempted", C, "_literal_plan",
             r"if may_admit:", "if True:", "given/priority-tight-0"),
    Mutation("16", "requests that finish together free their blocks in reverse", L, "complete",
             r"finished\.sort\(key=run_order\)", "finished.sort(key=run_order, reverse=True)",
             "given/prefix-tight-0"),
    Mutation("18", "a full last block already takes the next one", B, "grow",
             r"need = -\(-num_tokens // self\.block_size\)", "need = num_tokens // self.block_size + 1",
             "given/fcfs-tight-0"),
    Mutation("19", "a prompt may be found whole in the cache", P, "_hits",
             r"\(seq\.num_tokens - 1\) // bs", "seq.num_tokens // bs",
             "recorded/prefix-whole-blocks-111"),
    Mutation("19", "a resumed request finds no blocks of its outputs", P, "_hits",
             r"\(seq\.num_tokens - 1\) // bs", "(min(seq.num_tokens, seq.prompt_tokens) - 1) // bs",
             "recorded/all-mixed-11"),
    Mutation("19", "blocks with outputs are not hashed", P, "grow",
             r"min\(num_tokens, seq\.num_tokens\)", "min(num_tokens, seq.prompt_tokens)", "recorded/all-mixed-11"),
    Mutation("19", "blocks are hashed when computed, a step later", P, "grow",
             r"min\(num_tokens, seq\.num_tokens\)", "seq.num_computed", "given/prefix-tight-0"),
    Mutation("19", "a hit block in the free queue costs nothing", P, "missing_blocks",
             r" \+ sum\(1 for b in hits if refs\[b\] == 0\)", "", "given/prefix-tight-0"),
    Mutation("19", "of equal blocks the newest is hit", P, "_hits", r"block\[0\]", "block[-1]",
             "recorded/all-mixed-11"),
    Mutation("19", "a second block with the same content is not hashed", P, "_commit",
             r"block = held\[index\]\n", "block = held[index]\n        if block_key(index, bs) in cached: continue\n",
             "recorded/all-mixed-11"),
    Mutation("19", "blocks are freed head first", P, "free", r"in reversed\(held\)", "in held",
             "given/prefix-tight-0"),
    Mutation("19", "blocks without a hash go to the back as well (0.19.0)", P, "free",
             r"key_of\[block\] is None and self\.unhashed_to_front", "False", "given/prefix-tight-0"),
    Mutation("19", "an allocated block keeps its hash", P, "_evict", r"self\._key_of\[block\] = None\n",
             "return\n", "given/prefix-tight-0"),
    Mutation("20", "the results of a step are known to the plan of the next", A, "plan",
             r"if not self\._leaving:", "self._let_go(None)\n    if not self._leaving:", "async/short-outputs-1"),
    Mutation("20", "an ended request holds no slot", C, "_admit_waiting",
             r" - len\(self\._ending\)", "",
             "async/few-seats-1141"),
    Mutation("20", "an ended request is not eligible", C, "_cap", r"len\(self\._ending\) \+ ", "",
             "async/cap-eligible-1"),
    Mutation("20", "the watermark does not hold while only ended requests run", C, "_admit_waiting",
             r"if running or self\._ending:", "if running:", "async/watermark-ended-1"),
    Mutation("20", "an ended request is no victim", C, "_literal_plan",
             r"if self\._ending and .ended := .*:", "if False:", "async/last-in-flight-37"),
    Mutation("20", "an ended request is the first victim", A, "_preempt_ending",
             r" or rank\(last\) < max\(map\(rank, order\)\)", "", "async/last-in-flight-37"),
    Mutation("20", "admission although an ended request was preempted", C, "_literal_plan",
             r"if may_admit:", "if not plan.preempted:", "async/last-in-flight-37"),
    Mutation("20", "a block is hashed while its last token is in flight", C, "_literal_plan",
             r"known = computed if seq in in_flight else None", "known = None", "async/own-blocks-1"),
    Mutation("20", "the same, in a run", L, "__init__", r"int\(self\.asynchronous\)", "0", "async/own-blocks-1",
             False),
    Mutation("20", "the last block of one that ends is not hashed", A, "_let_go",
             r"self\.pool\.commit\(seq, seq\.num_computed\)", "pass", "async/last-block-3"),
    Mutation("20", "blocks of those that end come back before the next step takes its own", A, "plan",
             r"self\.take_blocks\(plan, 1\)", "pass", "async/own-blocks-1", False),
    Mutation("20", "arrivals are seen by the next plan", K, "_next_plan",
             r"_plan_in_view\(unseen\.seen_ns\)", "_plan_in_view(ANY_TIME)",
             "async/trickle-1"),
    Mutation("20", "arrivals are seen one plan later still", K, "_plan_in_view", r"> seen_ns", ">= seen_ns",
             "async/trickle-1"),
    Mutation("20", "after an empty batch the engine does not look for arrivals", K, "_plan_after",
             r"_plan_in_view\(ANY_TIME\)", "_plan_in_view(ANY_TIME if plan is None else unseen.seen_ns)",
             "async/empty-steps-small-1001"),
    Mutation("11", "up to 0.27 the loop keeps its place when an ended request goes", C, "__init__",
             r"self\.keeps_its_place = .*", "self.keeps_its_place = True",
             "versions/priority-async-2531@0.28.0"),
    Mutation("11", "the same rule left out", C, "__init__",
             r"self\.keeps_its_place = .*", "self.keeps_its_place = False",
             "versions/priority-async-2531@0.15.1"),
    Mutation("7", "the cap spares a lone request in every version", C, "__init__",
             r"self\.spare_lone_prefill = .*", "self.spare_lone_prefill = True", "versions/cap-lone-2043@0.15.1"),
    Mutation("8", "every version admits by the first chunk", C, "__init__",
             r"self\.whole_must_fit = .*", "self.whole_must_fit = False", "given/priority-tight-0"),
    Mutation("8", "every version reserves the whole prompt", C, "__init__",
             r"self\.whole_must_fit = .*", "self.whole_must_fit = True", "versions/tight-64-2012@0.15.1"),
    Mutation("19", "blocks without a hash go to the front in every version", P, "__init__",
             r"self\.unhashed_to_front = unhashed_to_front", "self.unhashed_to_front = True",
             "versions/prefix-tight-2022@0.15.1"),
    Mutation("21", "of equally urgent requests the newest goes first", KeyedQueue, "push",
             r"self\.key\(seq\), seq\.arrival_order", "self.key(seq), -seq.arrival_order", "given/priority-tight-0"),
]


AS, PC, WP = AdapterSlots, PrefillCadence, WithParts
FIELD_MUTATIONS = [
    Mutation("2", "`max_num_scheduled_tokens` is ignored", C, "__init__",
             r"min\(self\.input_budget, config\.max_num_scheduled_tokens or self\.input_budget\)", "self.input_budget",
             "fields/scheduled-tokens-1"),
    Mutation("5", "`max_num_active_seqs` is ignored", C, "__init__", r"config\.max_num_active_seqs or", "",
             "fields/active-seqs-11"),
    Mutation("7", "an adaptive cap is a share of `max_num_scheduled_tokens`", C, "_cap",
             r"self\.input_budget // eligible", "self.max_num_batched_tokens // eligible",
             "fields/scheduled-tokens-cap-3"),
    Mutation("19", "blocks are shared among adapters", AdapterText, "block_key",
             r"\(\"adapter\", self\.adapter, key\)", "key", "fields/adapters-prefix-36"),
    Mutation("22", "one adapter more than `max_loras`", AS, "entry", r">= self\.max_loras", "> self.max_loras",
             "fields/adapters-31"),
    Mutation("22", "one that is passed over stops admission", AS, "entry", r"return SKIP", "return 2",
             "fields/adapters-31"),
    Mutation("22", "one that is passed over goes to the end of the queue", WP, "_admit_waiting",
             r"push_preempted", "push", "fields/adapters-32"),
    Mutation("22", "adapters of running sequences do not count", AS, "before_admission",
             r"(?s)if self\.counts_all.*?self\._active\.pop", "self._active = {}\n    self._active.pop",
             "fields/adapters-31"),
    Mutation("23", "no step defers prefills", PC, "before_plan", r"self\._defers = .*", "self._defers = False",
             "fields/interval-21"),
    Mutation("23", "steps defer prefills without a decode, too", PC, "before_plan", r" and decodes", "",
             "fields/async-interval-tight-503"),
    Mutation("23", "steps defer prefills in spite of a backlog", PC, "before_plan", r" and not self\._backlog", "",
             "fields/interval-seats-28"),
    Mutation("23", "prompts under way go on", PC, "due", r"self\._defers and", "False and", "fields/interval-21"),
    Mutation("23", "one found whole but for a token waits", PC, "entry", r"num_tokens > 1", "num_tokens > 0",
             "fields/interval-hits-26"),
    Mutation("23", "those passed over are a backlog", PC, "after_plan", r"> len\(self\.scheduler\.passed_over\)", "> 0",
             "fields/adapters-interval-39"),
    Mutation("23", "a step that preempts says whether there is a backlog", PC, "after_plan",
             r"\(self\._defers or self\._lost_one\)", "self._defers", "fields/async-adapters-interval-40"),
    Mutation("23", "an idle engine goes on counting", PC, "completed", r"self\.step_counter = 0", "pass",
             "fields/interval-gaps-29"),
    Mutation("23", "the count begins anew though requests have come during the last step", PC, "completed",
             r" or scheduler\._ending", "", "fields/async-interval-hits-504"),
]

S, F = Drafts, InFlightScheduler
# recordings of DRAFT_MUTATIONS; rules as docs/background/speculation.md numbers them, after an S
DRAFTS = ("speculation",)
DRAFT_MUTATIONS = [
    Mutation("S1", "drafts count no tokens of the step", S, "due",
             r"num_tokens \+ known\.drafts", "num_tokens", "speculation/ngram-3001@0.31.0"),
    Mutation("S2", "the KV of rejected drafts stays", S, "result", r"seq\.num_computed -= rejected", "pass",
             "speculation/eagle-3011@0.31.0"),
    Mutation("S3", "no slots are held for drafting", C, "_literal_plan", r"n \+ lookahead, known", "n, known",
             "speculation/eagle-tight-3012@0.31.0"),
    Mutation("S4", "a draft model takes no slots of the input", S, "__init__", r"speculative\.slots", "0",
             "speculation/draft-model-3031@0.31.0"),
    Mutation("S5", "drafts are hashed", P, "grow", r"min\(num_tokens, seq\.num_tokens\)", "num_tokens",
             "speculation/ngram-tight-3002@0.31.0"),
    Mutation("S5", "the last block of a hit is not computed again", S, "_set_hashes",
             r"self\._ahead_of_blocks and not ahead", "False", "speculation/eagle-tight-3012@0.31.0"),
    Mutation("S6", "no rows of padding", S, "padded", r"pads = .*", "pads = False",
             "speculation/spec-pad-3581@0.31.0"),
    Mutation("S6", "rows of padding with sequences admitted in this step", S, "padded",
             r"\(self\._others or past > 0\)", "bool(past or self.scheduler.running)",
             "speculation/spec-pad-async-4082@0.31.0"),
    Mutation("S6", "rows of padding with prompts, too", S, "padded",
             r"not self\._prefilling and ", "",
             "speculation/spec-pad-3581@0.31.0"),
    Mutation("S7", "a preempted sequence keeps its drafts", S, "_account",
             r"known\.drafts = 0", "pass",
             "speculation/spec-priority-3041@0.31.0"),
    Mutation("S8", "the results of a batch are known to the next", S, "__init__", r"self\.ahead = .*",
             "self.ahead = False", "speculation/eagle-async-3511@0.31.0"),
    Mutation("S8", "rejections do not correct what is promised", S, "result", r"rejected \+ tokens", "tokens",
             "speculation/eagle-async-3511@0.31.0"),
    Mutation("S8", "the verified blocks of a step are hashed by the next only", S, "verified",
             r"if self\.hashes_results and .*:", "if False:", "speculation/mtp-async-43521@0.31.0"),
    Mutation("S9", "a sequence that may have its last token in flight is left out", S, "due",
             r"seq\.num_computed \+ 2 - known\.promised", "seq.num_computed + 1",
             "speculation/eagle-async-3511@0.31.0"),
]
ABORTS = ("aborts",)   # recordings of ABORT_MUTATIONS
ABORT_MUTATIONS = [
    Mutation("24", "the blocks of a request given up stay held", L, "_take_out", r"self\.release\(seq\)", "pass",
             "aborts/abort-tight-8-7011"),
    Mutation("24", "asynchronously: the step that is scheduled already leaves it out", K, "_moment",
             r"PLANNED if .*", "AT_REST", "aborts/abort-tight-8-async-7511"),
    Mutation("24", "asynchronously: one that ends in that step gives its token", A, "_leave_late",
             r"self\._unlink\(seq\)", "return", "aborts/abort-few-seats-async-207561"),
    Mutation("24", "given up while a step runs: it leaves after those that end in this step", A, "leave",
             r"self\._num_aborted if when == RESULTS else ", "",
             "aborts/given-up-small-cache-async-76"),
    Mutation("24", "the same, synchronously", vllm_replay, "_replay_steps",
             r"scheduler\.leave\(seq, RESULTS\)", "given_up[seq] = step", "aborts/given-up-prefix-52060"),
    Mutation("24", "given up between two steps: it leaves before those that ended", A, "leave",
             r"else len\(self\._leaving\)", "else 0",
             "aborts/given-up-small-cache-async-252"),
    Mutation("24", "with drafts: the results of the step in flight come first", F, "advance",
             r"before_results\(\)\n", "pass\n", "aborts/given-up-eagle-async-52130"),
]
STOPS = ("ends",)   # recordings of STOP_MUTATIONS
STOP_MUTATIONS = [
    Mutation("25", "a stop token is known beforehand, as the last of the tokens asked for is", K, "_take",
             r"stage\.stops_early = \(", "stage.stops_early = False and (", "ends/stop-roomy-async-51000"),
    Mutation("25", "the step that is scheduled already leaves it out", A, "plan", r"if not self\._leaving:",
             "if self._unseen: self._let_go(None)\n    if not self._leaving:", "ends/stop-tight-async-51010"),
    Mutation("25", "its blocks come back after those of others that end", A, "complete",
             r"finished\.copy\(\)", "sorted(finished, key=lambda seq: seq.stops_early)",
             "ends/stop-small-cache-async-23"),
    Mutation("25", "as a victim it waits and is computed anew", A, "preempt", r"if seq not in self\._unseen:",
             "if seq not in self._unseen or [self._unseen.pop(seq), self._leaving.remove(seq)]:",
             "ends/stop-cap-async-51100"),
    Mutation("25", "its last whole block is not hashed", A, "_leave_late",
             r"if ran and stopped:", "if False:",
             "ends/stop-small-cache-async-15", False),
    Mutation("25", "the block that it takes in that step is lost", A, "_leave_late",
             r"seq\.num_blocks = .*", "pass", "ends/stop-roomy-async-51000", False),
    Mutation("25", "with drafts: it ends with the tokens that it gets", S, "due",
             r"seq\.max_new_tokens if seq\.stops_early else seq\.target_tokens", "seq.target_tokens",
             "ends/stop-eagle-async-51130"),
]
G = PrefixBlockPool
# recordings of LATER_MUTATIONS: rules that moved in 0.33
MIXTURES = ("mixtures", "drafted", "speculation", "talks", "joined")
LATER_MUTATIONS = [
    Mutation("11", "from 0.33 on the loop ends at a self-preemption", C, "__init__", r"self\.goes_on = .*",
             "self.goes_on = False", "mixtures/mixture-33022@0.33.0"),
    Mutation("11", "the same with drafts", C, "__init__", r"self\.goes_on = .*", "self.goes_on = False",
             "speculation/spec-priority-3041@0.33.0"),
    Mutation("22", "from 0.33 on only adapters of the step count", AS, "__init__",
             r"= max_loras, counts_all", "= max_loras, False",
             "mixtures/mixture-async-33001@0.33.0"),
    Mutation("22", "adapters of sequences that have ended do not count", AS, "before_admission",
             r", \*scheduler\._ending", "", "mixtures/mixture-async-33001@0.33.0"),
    Mutation("23", "an engine without ranks counts as ranks do", PC, "before_plan", r"if self\.local\n", "if False\n",
             "mixtures/mixture-33001@0.33.0"),
    Mutation("23", "an engine without ranks defers nothing", PC, "before_plan",
             r"self\._executed \+ 1 - .* < self\.interval", "False", "mixtures/mixture-33001@0.33.0"),
    Mutation("23", "the interval begins with admissions only", PC, "_is_prefill", r"seq in self\._chunks or", "",
             "mixtures/mixture-async-300059@0.33.0"),
    Mutation("23", "the interval begins with chunks only", PC, "_is_prefill",
             r" or seq\.num_computed - n < seq\.num_tokens - 1", "", "mixtures/mixture-33001@0.33.0"),
    Mutation("23", "one found whole but for a token begins the interval", PC, "_is_prefill",
             r"< seq\.num_tokens - 1", "< seq.num_tokens", "mixtures/mixture-33001@0.33.0"),
    Mutation("23", "without ranks, prefills are deferred in spite of a backlog", PC, "before_plan",
             r" and not self\._backlog", "", "mixtures/mixture-33001@0.33.0"),
    Mutation("23", "batches in flight are counted with their results", PC, "after_plan",
             r"self\._executed \+= bool\(plan\.prefills\)", "pass", "drafted/drafted-33111@0.33.0"),
    Mutation("23", "ranks count batches in flight with their results", PC, "after_plan",
             r"self\.step_counter \+= 1", "pass", "drafted/drafted-33121@0.33.0"),
    Mutation("24", "a prompt given up counts as under way", PC, "aborted", r"self\._chunks\.pop\(seq, None\)", "pass",
             "mixtures/mixture-300111@0.33.0"),
    Mutation("S5", "from 0.33 on the last block of a hit is computed again", S, "_set_hashes",
             r"self\._hashes_ahead and not connected", "False", "speculation/eagle-tight-3012@0.33.0"),
    Mutation("S5", "hashes cover their block alone", S, "_set_hashes", r"pool\.hash_lookahead = .*",
             "pool.hash_lookahead = 0", "speculation/mtp-3021@0.33.0"),
    Mutation("S5", "a block is hashed before the token after it is known", G, "grow",
             r"known = min\(known, seq\.num_tokens - self\.hash_lookahead\)", "pass",
             "mixtures/mixture-async-301020@0.33.0", False),
    Mutation("S5", "scheduling synchronously, verified tokens are hashed by the next step", S, "__init__",
             r"self\.hashes_results = .*", "self.hashes_results = self.ahead", "speculation/ngram-tight-3002@0.33.0"),
]
GROUPS = [(MUTATIONS, FOLDERS), (FIELD_MUTATIONS, FIELDS), (DRAFT_MUTATIONS, DRAFTS),
          (ABORT_MUTATIONS, ABORTS), (STOP_MUTATIONS, STOPS), (LATER_MUTATIONS, MIXTURES)]
FILES = [TABLES / f"{name}.csv" for name in ("loop", "fields", "drafts", "aborts", "stops", "later")]   # as GROUPS


def table_of(number: int) -> str:
    """Return one table of the page."""
    mutations, folders = GROUPS[number]
    return table(mutations, SCHEDULES, {folder: f"{folder} ({{}})" for folder in folders})


if __name__ == "__main__":
    # numbers of the tables; all if none is given
    for number in map(int, sys.argv[1:] or range(len(GROUPS))):
        FILES[number].write_text(table_of(number), encoding="utf-8")
