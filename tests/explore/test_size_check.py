"""The check of a sizing: other seeds decide, one client less is tried, and noise is named."""

from __future__ import annotations

from typing import Any

from hermes.explore.certain_miss import CERTAIN
from hermes.explore.size import Found, Kind, Sizing, Tried
from hermes.explore.size_check import check_answer, near_limit, with_longer

KIND = Kind("h100-sxm", 1)


def row(*, ok: bool, share: float = 0.005, half: float = 0.001, stable: bool = True, total: int = 1000,
        used: float = 0.5) -> dict[str, Any]:
    return {"slo.pass": ok, "headline.stable": None if stable else False, "settling.settled": True,
            "slo.ttft.pass": ok, "slo.ttft.value_s": 1.0, "slo.ttft.limit_s": 1.0 / used,
            "requests.total": total, "settling.arrivals_s": 60.0,
            "settling.beyond.ttft_p99.share": share, "settling.beyond.ttft_p99.low": share - half,
            "settling.beyond.ttft_p99.high": share + half, "settling.beyond.ttft_p99.allowed": 0.01,
            "headline.output_tokens_per_s": 100.0, "headline.per_million_output_tokens_dollars": 1.0}


class Seeds:
    """Stands in for `Trials`: with so many clients, so many of three seeds meet the SLO."""

    def __init__(self, meets: dict[int, int], share: float = 0.005, used: float = 0.5) -> None:
        self.meets, self.share, self.used, self.ran = meets, share, used, list[str]()
        self.scenario = type("S", (), {"seed": 0})()
        self.lengths: dict[str, float] = {}
        self.ends: set[float] = set()

    def run(self, wanted: Any, times: float, *, until_missed: float = 0.0) -> dict[str, Any]:
        out = {}
        self.ends.add(until_missed)
        for label, (settings, seed) in wanted.items():
            self.ran.append(label)
            self.lengths[label] = times
            out[label] = row(ok=seed <= self.meets.get(settings["n"], 0), share=self.share, used=self.used) | {
                "cost.dollars_per_hour": 4.0 * settings["devices"]}
        return out


def sizing(clients: int, known: dict[int, dict[str, Any]]) -> Sizing:
    tried = [Tried(KIND, (n,), None if r["slo.pass"] else "TTFT p99 1 s", r) for n, r in known.items()]
    best = next(one for one in tried if one.clients == (clients,))
    return Sizing("x", None, {}, [Found(KIND, "mixed", best, tried)], [])  # type: ignore[arg-type]


def checked(seeds: Seeds, start: Sizing, most: int = 8) -> Sizing:
    def changes(kind: Kind, numbers: tuple[int, ...]) -> dict[str, int]:
        return {"n": numbers[0], "devices": numbers[0] * kind.devices}

    return check_answer(seeds, start, changes, most)  # type: ignore[arg-type]


def test_a_seed_that_misses_adds_a_client() -> None:
    seeds = Seeds({3: 2, 4: 3})
    found = checked(seeds, sizing(3, {3: row(ok=True), 2: row(ok=False, stable=False)}))
    assert found.meets[0].clients == (4,)
    assert seeds.ends == {CERTAIN}, "what certainly misses is ended"
    assert found.check is not None
    assert [one.tried.clients for one in found.check.fewer] == [(3,)]
    assert not found.check.within_noise


def test_longer_simulations_end_with_a_miss_where_no_seed_met_the_slo() -> None:
    """Three seeds miss within noise: a fourth decides. Where seeds disagree, three more run side by side."""
    seeds = Seeds({3: 0, 4: 3}, share=0.0098)
    assert checked(seeds, sizing(3, {3: row(ok=True), 2: row(ok=False, stable=False)})).meets[0].clients == (4,)
    mine = [label for label in seeds.ran if label.startswith("3 x")]
    assert [label.rsplit(" ", 1)[1] for label in mine] == ["1", "2", "3", "4"]
    seeds = Seeds({3: 2, 4: 3}, share=0.0098)
    checked(seeds, sizing(3, {3: row(ok=True), 2: row(ok=False, stable=False)}))
    assert len([label for label in seeds.ran if label.startswith("3 x")]) == 6


def test_near_a_limit_two_seeds_that_miss_are_enough() -> None:
    """One of two that misses is not: seeds that disagree are asked for longer."""
    for used, meeting, ran in ((0.9, 0, "12"), (0.5, 0, "123"), (0.9, 1, "123456")):
        seeds = Seeds({3: meeting, 4: 3}, share=0.02)
        found = checked(seeds, sizing(3, {3: row(ok=True, used=used), 2: row(ok=False, stable=False)}))
        assert found.meets[0].clients == (4,)
        assert "".join(label[-1] for label in seeds.ran if label.startswith("3 x")) == ran


def test_one_client_less_that_meets_with_all_seeds_is_the_answer() -> None:
    start = sizing(4, {4: row(ok=True), 3: row(ok=False, share=0.011)})
    found = checked(Seeds({4: 3, 3: 3, 2: 0}), start)
    assert found.meets[0].clients == (3,)


def test_one_client_less_that_misses_by_far_is_not_simulated() -> None:
    seeds = Seeds({4: 3})
    start = sizing(4, {4: row(ok=True), 3: row(ok=False, share=0.2)})
    found = checked(seeds, start)
    assert found.meets[0].clients == (4,)
    assert len(seeds.ran) == 3
    assert found.check is not None
    assert [(one.tried.clients, one.met, len(one.misses)) for one in found.check.fewer] == [((3,), 0, 1)]


def test_figures_are_those_of_the_seed_that_is_written() -> None:
    """The search's own where it meets the SLO, else of another seed, for as long as that ran."""
    start = sizing(4, {4: row(ok=True, used=0.9), 3: row(ok=False, share=0.2)})
    best = checked(Seeds({4: 3}), start).meets[0]
    assert (best.seed, best.row["slo.ttft.limit_s"]) == (None, 1.0 / 0.9)
    more = checked(Seeds({3: 2, 4: 3}), sizing(3, {3: row(ok=True), 2: row(ok=False, stable=False)})).meets[0]
    assert (more.clients, more.seed, more.length) == ((4,), 1, 3.0)


def test_no_room_for_a_client_more() -> None:
    found = checked(Seeds({3: 1}), sizing(3, {3: row(ok=True)}), most=3)
    assert not found.meets
    assert found.found[0].tried[-1].misses == "the SLO with another seed"


def test_too_near_to_a_limit_is_within_noise() -> None:
    start = sizing(1, {1: row(ok=True)})
    found = checked(Seeds({1: 3}, share=0.0098), start)
    assert found.check is not None
    assert found.check.within_noise
    assert found.check.answer.near == "ttft_p99"
    assert near_limit([row(ok=True, share=0.004)] * 3) is None
    # three seeds know the share better than one
    assert near_limit([row(ok=True, share=0.0092)]) == "ttft_p99"
    assert near_limit([row(ok=True, share=0.0092)] * 3) is None


def test_little_headroom_takes_longer_simulations() -> None:
    """Bursts may be so rare that three seeds have none: the fourth misses, and the answer stays, within noise."""
    def longer(seeds: Seeds, headroom: float) -> Any:
        found = checked(seeds, sizing(2, {2: row(ok=True), 1: row(ok=False, share=0.5)}))
        return with_longer(seeds, found, lambda kind, n: {"n": n[0], "devices": n[0]}, headroom)  # type: ignore[arg-type]

    near = longer(Seeds({2: 3}, share=0.0004), 0.04)
    assert (near.longer.met, len(near.longer.misses), near.within_noise) == (0, 3, True)
    assert near.longer.times == 3 * near.answer.times
    safe = longer(Seeds({2: 6}, share=0.0004), 0.04)
    assert (safe.longer.met, len(safe.longer.misses), safe.within_noise) == (3, 3, False)
    assert longer(Seeds({2: 3}), 0.06).longer is None
    assert longer(Seeds({2: 6}, used=0.96), 0.06).longer is not None


def test_a_client_more_is_checked_once_it_is_the_cheapest() -> None:
    """Three of TP1 ($12) miss with a seed. Four cost what two of TP2 do, which are the answer: one simulation is enough
    for the row of the four. Where TP2 costs more, the four are checked with all seeds."""
    def ran(price: float) -> tuple[list[str], list[str]]:
        kinds = {3: Kind("h100-sxm", 1, price=4.0), 2: Kind("h200", 2, price=price)}
        found = []
        for n, kind in kinds.items():
            known = {n: row(ok=True), n - 1: row(ok=False, share=0.2)}
            tried = [Tried(kind, (m,), None if one["slo.pass"] else "TTFT p99 1 s",
                           one | {"cost.dollars_per_hour": price * 2 * m if n == 2 else 4.0 * m})
                     for m, one in known.items()]
            found.append(Found(kind, "mixed", tried[0], tried))
        seeds = Seeds({3: 2, 4: 3, 2: 3})
        answer = checked(seeds, Sizing("x", None, {}, found, []))  # type: ignore[arg-type]  # no scenario is read
        return [one.label for one in answer.meets], [label for label in seeds.ran if label.startswith("4 x")]

    assert ran(4.0) == (["2 x h200 TP2", "4 x h100-sxm TP1"], ["4 x h100-sxm TP1, seed 1"])
    assert ran(9.0) == (["4 x h100-sxm TP1", "2 x h200 TP2"], [f"4 x h100-sxm TP1, seed {n}" for n in (1, 2, 3)])


def test_a_layout_that_might_cost_no_more_is_checked_with_one_client_less() -> None:
    """The search's seed gave another layout a client too many: it must not lose by that."""
    kinds = {"tp1": Kind("h100-sxm", 1, price=4.0), "tp2": Kind("h100-sxm", 2, price=4.0)}

    def start(less: dict[str, Any]) -> Sizing:
        known = {"tp1": {3: row(ok=True), 2: row(ok=False, share=0.2)}, "tp2": {2: row(ok=True), 1: less}}
        found = []
        for name, rows in known.items():
            tried = [Tried(kinds[name], (n,), None if one["slo.pass"] else "TTFT p99 1 s",
                           one | {"cost.dollars_per_hour": 4.0 * n * kinds[name].devices}) for n, one in rows.items()]
            found.append(Found(kinds[name], "mixed", tried[0], tried))
        return Sizing("x", None, {}, found, [])  # type: ignore[arg-type]

    def labels(less: dict[str, Any], meets: int) -> tuple[list[str], list[str]]:
        seeds = Seeds({3: 3, 2: 3, 1: meets})
        found = checked(seeds, start(less))
        return [one.label for one in found.meets], seeds.ran

    near = row(ok=False, share=0.011) | {"cost.dollars_per_hour": 8.0}
    found, ran = labels(near, 3)
    assert found == ["1 x h100-sxm TP2", "3 x h100-sxm TP1"], "two devices do, with every other seed"
    assert labels(near, 2)[0] == ["3 x h100-sxm TP1", "2 x h100-sxm TP2"]
    assert len(ran) == 6
    assert len(labels(row(ok=False, share=0.2), 3)[1]) == 3, "a miss by far is no question of seeds"
