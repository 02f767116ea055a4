"""Break the prefix cache in segments on purpose, one line at a time, and see whether random operations notice.

A mutation replaces a piece of a method's source text, which has to occur exactly once. Where it is gone the method was
rewritten, and the mutation has to be written anew.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from pool_pair import drive

from hermes.core.block_hashes import HashedPieces
from hermes.memory.prefix import PrefixBlockPool
from hermes.memory.segments import Chain, SegmentIndex

WORLDS, OPERATIONS = 100, 200   # as in the test of the real code


@dataclass(frozen=True)
class Mutant:
    """`old` in the source of `owner.method` becomes `new`."""

    what: str
    owner: Any
    method: str
    old: str
    new: str


P, C, S = PrefixBlockPool, Chain, SegmentIndex

MUTANTS = [
    Mutant("a prompt may be found whole", P, "_find", "(num_tokens - 1)", "num_tokens"),
    Mutant("a lookup is remembered although segments changed", P, "_find",
           "and self._hits_version == self._version", ""),
    Mutant("a lookup is remembered although the sequence got longer", P, "_find",
           "and self._hits_tokens == num_tokens", ""),
    Mutant("a lookup goes on after a miss", P, "_find", "if block < end:\n                    break", "pass"),
    Mutant("a sequence does not find its own blocks again", P, "_find", "if block < limit:\n", "if False:\n"),
    Mutant("a free hit costs nothing", P, "missing_blocks",
           " + sum([end - first for segment, first, end in hits if not segment.refs])", ""),
    Mutant("a hit in use costs as well", P, "missing_blocks", " if not segment.refs", ""),
    Mutant("peaks of sharing are not noted", P, "admit", "self._note_shared()", "pass"),
    Mutant("what was split during an admission is not followed", P, "_hold", "while segment.hi <= first:",
           "while False:"),
    Mutant("a hit of a held segment's end takes it whole", P, "_hold",
           "segment = self._split(segment, first)", "pass"),
    Mutant("a hit of a held segment's beginning takes it whole", P, "_hold", "self._split(segment, end)", "pass"),
    Mutant("a hit in use is not counted as shared", P, "_hold", "self.shared_blocks += end - first", "pass"),
    Mutant("what is left of a free segment does not wake up", P, "_hold",
           "self._queue.put_before(tail, segment)", "self._queue.append(tail)"),
    Mutant("the ends of a free segment change places", P, "_hold",
           "self._queue.put_before(tail, segment)", "self._queue.put_before(tail, segment.after)"),
    Mutant("a hit leaves the free segment its blocks", P, "_hold", "segment.lo = end", "pass"),
    Mutant("a hit segment stays in the free queue", P, "_hold", "self._queue.remove(segment)", "pass"),
    Mutant("a split does not end remembered lookups", P, "_split", "self._version += 1", "pass"),
    Mutant("a split forgets what was split off before", P, "_split",
           "part.refs, part.rest = segment.refs, segment.rest", "part.refs = segment.refs"),
    Mutant("a split-off part has one holder", P, "_split",
           "part.refs, part.rest = segment.refs, segment.rest", "part.refs, part.rest = 1, segment.rest"),
    Mutant("tokens that are not known are hashed", P, "grow", "if known is None:", "if True:"),
    Mutant("blocks of tokens to come are hashed", P, "grow",
           "num_tokens if num_tokens < seq.num_tokens else seq.num_tokens", "num_tokens"),
    Mutant("an evicted segment is still found", P, "take", "remove(segment)", "pass"),
    Mutant("eviction takes the first blocks of a segment", P, "take", "segment.hi -= num_blocks",
           "segment.lo += num_blocks"),
    Mutant("eviction does not end remembered lookups", P, "take", "self._version += 1", "pass"),
    Mutant("blocks without a hash never run out", P, "take", "self._num_unhashed = 0", "pass"),
    Mutant("a commit does not end remembered lookups", P, "_hash", "self._version += 1", "pass"),
    Mutant("a segment grows that others hold", P, "_hash", "last.refs == 1 and ", ""),
    Mutant("a segment grows although a younger one has its name", P, "_hash",
           "known is last or (type(known) is list and known[-1] is last)", "last.name == name"),
    Mutant("a commit extends what others hold", P, "commit", "last.refs == 1 and ", ""),
    Mutant("a commit extends although a younger one has its name", P, "commit",
           "known is last or (type(known) is list and known[-1] is last)", "last.name == chain.name"),
    Mutant("a commit extends beyond its name", P, "commit", "full <= chain.name_end", "True"),
    Mutant("a commit that extends does not move the chain", P, "commit", "last.hi = chain.end = full",
           "last.hi = full"),
    Mutant("equal blocks are hashed once", P, "_hash", "known.append(segment)", "pass"),
    Mutant("the younger of equal blocks is hit", P, "_hash", "known.append(segment)", "known.insert(0, segment)"),
    Mutant("the youngest of two equal blocks is hit", P, "_hash", "[known, segment]", "[segment, known]"),
    Mutant("every answer is its own", P, "answers_alone", "chain.runs is None", "True"),
    Mutant("no answer is its own", P, "answers_alone", "chain.runs is None", "False"),
    Mutant("unhashed blocks are always freed to the front", P, "free", "if self.unhashed_to_front:", "if True:"),
    Mutant("unhashed blocks are always freed to the back", P, "free", "if self.unhashed_to_front:", "if False:"),
    Mutant("blocks are freed head first", P, "free", "reversed(chain.segments())", "chain.segments()"),
    Mutant("blocks that others hold are freed", P, "free", "if segment.refs:", "if False:"),
    Mutant("sharing never ends", P, "free", "self.shared_blocks -= size", "pass"),
    Mutant("branches share the answer", P, "share", "self._split(segment, whole)", "pass"),
    Mutant("a lead whose content changes keeps its names", P, "relate",
           "chain.rename(name_runs(lead, self.block_size))", "pass"),
    Mutant("branches do not hold what they share", P, "share", "segment.refs += 1", "pass"),
    Mutant("names begin anew after a hit", C, "next_name", "if end > self.end:", "if True:"),
    Mutant("what was split off is freed late", C, "segments", "while first < self.end:", "while False:"),
    Mutant("what was split off in between is not freed", C, "segments", "while first < part.lo:", "while False:"),
    Mutant("an older segment further on does not count", S, "match",
           "if segment.lo < to:\n                        to = segment.lo", "pass"),
    Mutant("a hit goes on beyond its segment", S, "match",
           "if segment.hi < to:\n                        to = segment.hi", "pass"),
    Mutant("a hit goes on beyond what was asked for", S, "match", "known.hi if known.hi < end else end", "known.hi"),
    Mutant("a lookup of many misses their first blocks", S, "match", "segment.lo > first", "segment.lo >= first"),
    Mutant("a lookup of one begins anywhere in it", S, "match", "known.lo <= first < known.hi", "first < known.hi"),
    Mutant("a lookup of one begins behind it", S, "match", "known.lo <= first < known.hi", "known.lo <= first"),
    Mutant("what was split off is younger", S, "add_part", "known.insert(known.index(segment) + 1, part)",
           "known.append(part)"),
    Mutant("a piece goes on beyond its prompt", HashedPieces, "name_runs", "min(end, tokens)", "end"),
    Mutant("a block across two pieces has the earlier one's name", HashedPieces, "name_runs",
           "min(end, tokens) // block_size", "-(-min(end, tokens) // block_size)"),
    Mutant("of two segments one is forgotten", S, "remove", "self.by_name[segment.name] = known[0]",
           "del self.by_name[segment.name]"),
]


def noticed(mutant: Mutant) -> bool:
    """Whether a comparison fails, or the code breaks down, in the operations that the real code passes."""
    original = vars(mutant.owner)[mutant.method]
    text = inspect.getsource(original)
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.what}: {mutant.old!r} occurs {text.count(mutant.old)} times in {mutant.method}")
    namespace: dict[str, Any] = {}
    text = "if True:\n" + text.replace(mutant.old, mutant.new)   # as it is indented
    exec(compile(text, f"<{mutant.what}>", "exec"), original.__globals__, namespace)
    setattr(mutant.owner, mutant.method, namespace[mutant.method])
    try:
        drive(range(WORLDS), OPERATIONS)
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return True
    finally:
        setattr(mutant.owner, mutant.method, original)
    return False
