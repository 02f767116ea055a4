"""Break one rule of KV offload at a time, and see which recorded schedules notice.

`python tests/docs/offload_mutations.py` writes the table of docs/background/kv-offload.md. `test_offload_page.py`
checks that the recording named in a row notices the mutation.
"""

from __future__ import annotations

from pathlib import Path

from mutations import Mutation, table

from hermes.memory.host_cache import ArcOrder, HostCache, LruOrder, RankedOrder
from hermes.schedulers.chunked import ChunkedScheduler
from hermes.schedulers.drafts import Drafts
from hermes.schedulers.host_offload import HostOffload
from hermes.schedulers.in_flight import InFlightScheduler
from hermes.schedulers.parts import WithParts

SCHEDULES = Path(__file__).resolve().parents[1] / "data" / "vllm-schedules-offload"
TABLE = SCHEDULES.parents[2] / "docs" / "background" / "kv-offload" / "broken-rules.csv"
S, W, C = HostOffload, WithParts, ChunkedScheduler
F, D = InFlightScheduler, Drafts
H, L, A, R = HostCache, LruOrder, ArcOrder, RankedOrder

MUTATIONS = [
    Mutation("1", "the host is asked first, not the device", S, "entry",
             r"found = self\._found\(seq, past\)", "found = self._found(seq, 0)", "arc-again-2"),
    Mutation("1", "the last token of a prompt is never loaded", S, "_found",
             r"seq\.num_tokens // size\n", "(seq.num_tokens - 1) // size\n", "whole-prompts-4"),
    Mutation("2", "less than a chunk is loaded as well", S, "_found",
             r"if chunk \* size - past < size:", "if False:", "chunks-of-four-2001"),
    Mutation("3", "a chunk that is being written is a miss", S, "_found", r"if ready is None:", "if not ready:",
             "whole-prompts-4"),
    Mutation("3", "chunks that another request loads are loaded twice", S, "_found",
             r"None if busy < chunk else", "", "arc-again-2"),
    Mutation("4", "a request that waits for a job stops those behind it", S, "entry",
             r"if found is None:\n +return SKIP", "if found is None:\n        return 3", "second-offer-2001"),
    Mutation("4", "skipped requests go to the end of the queue", W, "_admit_waiting",
             r"self\.waiting\.push_preempted\(seq\)", "self.waiting.push(seq)", "shared-prefixes-2002"),
    Mutation("5", "a load needs room for its own blocks only", S, "_room_for_load",
             r"if scheduler\.whole_must_fit and", "if False and", "conversations-2001"),
    Mutation("5", "a load takes what prefills under way still need", S, "_room_for_load",
             r"pool\.free_blocks - reserved", "pool.free_blocks", "conversations-slow-2002"),
    Mutation("5", "loads under way reserve nothing", S, "_holders",
             r"(?s)yield from scheduler\.holding.*", "", "conversations-slow-2002"),
    Mutation("5", "the watermark does not hold for loads", S, "_room_for_load",
             r"spare = scheduler\.watermark_blocks", "spare = 0 * scheduler.watermark_blocks", "capped-2001"),
    Mutation("6", "loaded blocks are hashed when the load starts", S, "_load",
             r"pool\.admit\(seq, past \+ found, past\)", "pool.admit(seq, past + found)", "arc-again-2"),
    Mutation("7", "complete loads wait behind the queue", C, "_admit_waiting",
             r"seq = holding\[0\] if holding else waiting\.peek\(\)",
             "seq = holding[0] if holding and not waiting else waiting.peek()",
             "arc-again-2"),
    Mutation("7", "a prompt loaded whole needs no step", S, "consider",
             r"seq\.num_computed -= 1", "seq.num_tokens += 1; seq.num_computed -= 0", "whole-prompts-4"),
    Mutation("8", "blocks are stored a step later", S, "_store_scheduled",
             r"tokens = min\(seq\.num_computed,", "tokens = min(seq.num_computed - 1,", "arc-again-2"),
    Mutation("8", "loaded chunks are offered again", S, "_load",
             r"progress\.next_chunk = .*", "pass", "small-host-2001"),
    Mutation("9", "blocks with outputs are stored always", S, "_store_scheduled",
             r"if self\.prompt_only and tokens >", "if False and tokens >", "first-chunks-2001"),
    Mutation("9", "the last token of an answer counts as computed", S, "_store_ended",
             r"seq\.num_tokens - 1\)", "seq.num_tokens)", "no-room-answers-1"),
    Mutation("10", "what found no room is not offered again", S, "_store",
             r"(self\._offers_again \|= .*\n +)return", "progress.next_chunk = end\n        return", "no-room-5"),
    Mutation("10", "a store takes the room that there is", H, "store",
             r"self\.refused \+= .*\n +return None", "new = new[:self.capacity - len(self._readers)]; gone = []",
             "no-room-5"),
    Mutation("11", "a chunk of the offer may be evicted for it", H, "store",
             r"\{\*keys, \*self\._busy\}", "self._busy", "no-room-5@0.33.0"),
    Mutation("12", "a load makes chunks recent", H, "load", r"self\._note\(keys, first, used, keys\)",
             "self._note(keys, first, used, keys); self._order.ended(used)", "arc-again-2"),
    Mutation("12", "an end makes nothing recent", S, "_store_ended", r"self\.host\.end\(progress\.chunks\)", "pass",
             "arc-again-2"),
    Mutation("12", "the end of a text stays longest", L, "ended", r"reversed\(used\.in_order\(\)\)",
             "used.in_order()", "no-room-5"),
    Mutation("12", "from 0.33 on a use moves nothing before the end", R, "accessed", r"rank = self\._rank_of\(used\)",
             "return", "no-room-5@0.33.0"),
    Mutation("12", "from 0.33 on each store has a rank of its own", R, "_rank_of", r"if not used\.rank:", "if True:",
             "no-room-5@0.33.0"),
    Mutation("8", "from 0.33 on a preempted request offers only what it did not", S, "__init__",
             r"self\.offers_anew = .*", "self.offers_anew = False", "no-room-answers-1@0.33.0"),
    Mutation("13", "arc: the end of a text stays longest", A, "ended", r"reversed\(used\.in_order\(\)\)",
             "used.in_order()", "arc-again-2"),
    Mutation("13", "arc: a store is a second use", A, "ended", r"if key in used\.reused:", "if True:", "arc-again-2"),
    Mutation("13", "arc: keys that are gone teach nothing", A, "missed", r"for key in reversed\(keys\):",
             "for key in ():", "arc-again-2"),
    Mutation("13", "arc: `once` is evicted from only above its target", A, "victims", r"left >= int\(self\.target\)",
             "left > int(self.target)", "arc-again-2"),
    Mutation("14", "offers are not counted", H, "store", r"new = \[key for key in new if self\._offers.*", "pass",
             "second-offer-2001"),
    Mutation("15", "a preempted request leaves its stores alone", S, "_flush", r"job\.seq in victims or", "",
             "conversations-2001"),
    Mutation("15", "blocks are taken before they are stored", S, "_flush", r"job\.fenced and not taken",
             "False and not taken",
             "no-room-answers-1"),
    Mutation("17", "blocks that a batch in flight writes come back at once", F, "release",
             r"self\._connected and", "False and", "async-drafts-tight-2001"),
    Mutation("18", "a victim whose blocks come back late is preempted", F, "_may_preempt",
             r"self\._connected and", "False and", "async-tight-2001"),
    Mutation("19", "a load leaves no room for the drafts of prompts under way", S, "_room_for_load",
             r"drafting = .*", "drafting = 0", "async-drafts-tight-2001"),
    Mutation("20", "hashes cover the token after the block", D, "_set_hashes", r" and not connected", "",
             "drafts-eagle-2001"),
    Mutation("21", "tokens in flight are offered", S, "_store_scheduled", r"min\(seq\.num_computed, .*\)",
             "seq.num_computed", "async-answers-2001"),
    Mutation("22", "a request given up while it loads gives its blocks back at once", W, "release",
             r"if seq not in self\.kept:", "if True:", "joined/joined-host-1333"),
    Mutation("23", "a request given up offers what an ended one does", S, "_store_ended",
             r"if progress\.given_up else", "if False else", "joined/joined-host-1332"),
    Mutation("23", "a request given up offers nothing of its answer", S, "_store_ended",
             r"if progress\.given_up else", "if False else 0 if seq.num_computed < seq.prompt_tokens else",
             "joined/joined-host-async-1337"),
    Mutation("23", "one given up while a step runs ends after those that end in it", S, "left_first",
             r"if seq in self\._ended:", "if False:", "joined/joined-host-1335"),
    Mutation("24", "with hidden states the last chunk of a hit is loaded as well", S, "_found",
             r"chunk -= self\.pool\.drop_last_hit", "pass", "drafts-eagle-2001"),
    Mutation("24", "with hidden states the last chunk of an answer is offered at once", S, "_store",
             r"not ended and num_tokens", "False and num_tokens", "joined/joined-host-1339"),
    Mutation("15", "blocks of running requests are fenced", S, "_flush", r"job\.fenced and not taken", "not taken",
             "first-chunks-2001"),
]


def page_table() -> str:
    return table(MUTATIONS, SCHEDULES, {".": "recordings that notice"})


if __name__ == "__main__":
    TABLE.write_text(page_table(), encoding="utf-8")
