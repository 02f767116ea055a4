"""lmbench: conversations found by lengths, and requests that time out at llm-d's router."""


import numpy as np
import pandas as pd
import pytest
from outside import OUTSIDE
from scripts_loaded import load

from evidence.accuracy import lmbench as module
from evidence.accuracy.lmbench import (
    BEHIND_SERVICE,
    H100,
    LIMITS,
    LOST_PER_S,
    ONE,
    PAIR,
    PAIR_H100,
    ROUTED,
    SEED,
    SEEN,
    STATED,
    Servers,
    connections_of,
    conversations,
    lmbench,
    lmbench_h100,
    of_rates,
    send,
    sent_to_router,
    served,
    timed_out,
    users_of,
)
from evidence.accuracy.lmbench_router import HOP, HOP_S, PLAIN, effects, hops, intervals, paired

FOLDER = OUTSIDE / "data" / "llm-d-lmbench"
needs_data = pytest.mark.outside("data/llm-d-lmbench")
OUTPUTS = (10, 900, 20, 30)   # the second takes more than 30 s


def asked_in_turn(rounds, messages, seed):
    """Return (prompts, answers, users) of users who ask in turn, for so many rounds each."""
    draw = np.random.default_rng(seed)
    users = [user for turn in range(max(rounds)) for user, most in enumerate(rounds) if turn < most]
    history = draw.integers(100, 1500, len(rounds))
    prompts, answers = [], []
    for user in users:
        prompts.append(int(history[user]))
        answers.append(int(draw.integers(10, 500)))
        history[user] += answers[-1] + int(draw.integers(*messages))
    return prompts, answers, users


def test_users_who_ask_in_turn_are_told_apart_by_their_lengths():
    # users 0 to 3 ask twice, user 0 and user 2 a third time: 500 + 40 + 9, 90 + 5 + 11 ...
    prompts = [500, 100, 90, 300, 549, 160, 106, 412, 660, 131]
    answers = [40, 50, 5, 100, 100, 10, 20, 10, 1, 1]
    assert conversations(prompts, answers).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 2]


@pytest.mark.parametrize("seed", range(5))
def test_few_prompts_are_taken_for_another_user_s(seed):
    rounds = np.random.default_rng(seed).integers(2, 6, 40)
    prompts, answers, users = asked_in_turn(rounds.tolist(), (3, 40), seed)
    assert (conversations(prompts, answers) == np.array(users)).mean() > 0.95


def test_prompts_that_repeat_nothing_are_a_user_each():
    assert conversations([500, 100, 90, 80], [5, 5, 5, 5]).tolist() == [0, 1, 2, 3]
    assert conversations([500], [5]).tolist() == [0]
    assert conversations([50, 100, 20], [5, 5, 5]).tolist() == [0, 1, 2], "the third continues none"


def rows(rate, outputs, places, workload="sharegpt"):
    return pd.DataFrame({
        "workload": workload, "rate": rate, "user": "", "launch_s": [place / rate for place in places],
        "prompt_tokens": [100 + 50 * place for place in places], "generation_tokens": [outputs[at] for at in places],
        "ttft_s": 0.2, "generation_s": [0.05 * outputs[at] for at in places]})


@pytest.fixture
def data(tmp_path):
    """A made-up set of two rates: the second request is not answered by llm-d's pair, the third with another length."""
    folder = tmp_path / "llm-d-lmbench"
    folder.mkdir()
    every = pd.concat([rows(rate, OUTPUTS, range(4)) for rate in (0.5, 2.0)])
    for file in (*ONE, PAIR):
        short = rows(2.0, OUTPUTS, range(4), "short_input").assign(user=[7, 8, 7, 9])
        pd.concat([every, short]).to_csv(folder / f"{file}.csv", index=False)
    pd.concat([rows(rate, OUTPUTS, range(4)) for rate in (4.0, 16.0, 20.0)]).to_csv(
        folder / f"{PAIR_H100}.csv", index=False)
    answered = pd.concat([rows(rate, (10, 0, 25, 30), (0, 2, 3)) for rate in (0.5, 2.0)])
    answered.to_csv(folder / f"{ROUTED}.csv", index=False)
    return tmp_path


@pytest.mark.long
def test_what_is_not_answered_has_timed_out(data):
    counts = {(row.case.set, row.case.case): row for row in lmbench(data) if row.metric == "timed out"}
    assert len(counts) == 2 * 4
    assert {(row.measured, row.predicted) for row in counts.values()} == {(1.0, 1.0)}
    assert ("lmbench x2, llm-d 30 s, random, below 2/s", "0.5/s") in counts
    assert ("lmbench x2, llm-d 30 s, random", "2/s") in counts


@pytest.mark.long
def test_a_plain_pair_is_scored_by_connections_at_random_and_in_turn(data):
    sets = dict.fromkeys(row.case.set for row in lmbench(data))
    for workload in ("short_input", "sharegpt"):
        for router in ("connections", "random", "round_robin"):
            assert f"lmbench x2, {workload}, {router}" in sets


def test_requests_take_the_first_idle_connection_of_the_pool(data):
    """Two connections while both are busy, the first again where both are idle, and new ones after 5 s."""
    sent = pd.DataFrame({"launch_s": [0.0, 1.0, 4.0, 4.5, 20.0, 20.5], "ttft_s": [1.0, 1.0, 0.5, 0.5, 1.0, 1.0],
                         "generation_s": [2.0, 1.0, 9.5, 0.5, 1.0, 1.0]})
    random = np.random.default_rng(SEED)
    first, second, third, fourth = (int(random.integers(100)) for _ in range(4))
    assert connections_of(sent, 100).tolist() == [first, second, first, second, third, fourth]
    _, sent = next(of_rates(data / "llm-d-lmbench" / f"{PAIR}.csv", "short_input"))
    found, _ = served(sent, Servers(2, connections=True, gateway=None))
    assert found["server"].tolist() == connections_of(sent, 2).tolist()


def test_the_pair_of_h100_is_one_server_after_it_lost_the_other(data):
    cases = list(dict.fromkeys((row.case.set, row.case.case) for row in lmbench_h100(data)))
    assert cases == [("lmbench H100 x2, sharegpt, connections", "4/s"), ("lmbench H100 x2, sharegpt, random", "4/s"),
                     ("lmbench H100 x2, sharegpt, round_robin", "4/s"), ("lmbench H100 x1, sharegpt, overload", "20/s")]


@pytest.mark.long
@needs_data
@pytest.mark.parametrize(("file", "limits", "client", "near"), [
    (PAIR, None, {}, "round_robin"), (PAIR_H100, LIMITS[1], H100, "random")])
def test_how_many_prompts_find_their_conversation_tells_how_a_service_balances(file, limits, client, near, monkeypatch):
    """The share of prompts that continue a conversation whose first token takes less than half of a computed one's."""
    users = users_of(FOLDER)
    continuing = np.array([user in users[:place] for place, user in enumerate(users)])
    _, sent = next(of_rates(FOLDER / f"{file}.csv", "sharegpt"))
    cold = send(sent, Servers(2, "round_robin", limits=limits, client=client, gateway=None)).requests["ttft_s"]

    def short(ttft_s):
        return float((ttft_s.to_numpy() < 0.5 * cold.to_numpy())[continuing].mean())

    recorded = short(sent["ttft_s"])
    found = {name: short(served(sent, servers._replace(limits=limits, client=client, conversations=True), users)
                         [0]["ttft_s"]) for name, servers in BEHIND_SERVICE.items()}
    assert min(found, key=lambda name: abs(found[name] - recorded)) == near
    assert found[near] == pytest.approx(recorded, abs=0.1)
    known, places = np.unique(users, return_inverse=True)
    homes = np.random.default_rng(SEED).integers(0, 2, len(known))[places]
    monkeypatch.setattr(module, "connections_of", lambda *_: homes)
    own = Servers(2, connections=True, gateway=None, limits=limits, client=client, conversations=True)
    assert short(served(sent, own, users)[0]["ttft_s"]) > recorded + 0.25, "no conversation keeps its server"


@pytest.mark.long
@needs_data
def test_the_pair_of_h100_finds_as_many_prefixes_as_a_pool_of_connections_gives():
    """The same share at all rates of the pair: 34, 37 and 17% recorded."""
    users = users_of(FOLDER)
    continuing = np.array([user in users[:place] for place, user in enumerate(users)])
    pair = Servers(2, "round_robin", limits=LIMITS[1], client=H100, gateway=None)
    for rate, sent in of_rates(FOLDER / f"{PAIR_H100}.csv", "sharegpt"):
        if rate < LOST_PER_S:
            cold = send(sent, pair).requests["ttft_s"].to_numpy()
            shared = served(sent, pair._replace(connections=True, conversations=True), users)[0]["ttft_s"]
            shares = [float((times.to_numpy() < 0.5 * cold)[continuing].mean()) for times in (sent["ttft_s"], shared)]
            assert shares[1] == pytest.approx(shares[0], abs=0.06), rate


def test_what_was_answered_has_its_own_length_and_the_rest_that_of_the_plain_pair(data):
    (_, sent, answered), _ = sent_to_router(data / "llm-d-lmbench")
    assert sent["generation_tokens"].tolist() == [10, 900, 25, 30]
    assert answered.index.tolist() == [0, 2, 3]


def test_an_engine_that_is_not_told_computes_all_tokens_of_what_has_timed_out(data):
    (_, sent, _), _ = sent_to_router(data / "llm-d-lmbench")
    users = users_of(data / "llm-d-lmbench")
    computed = {}
    for name, servers in (("aborts", STATED), ("goes on", SEEN)):
        results = send(sent, servers, users)
        assert timed_out(results) == 1
        assert "no answer within 30 s" in results.requests["reject_reason"].iloc[1]
        computed[name] = results.summary_of_run["attempts"]["wasted"]["timed_out"]["output_tokens"]
    assert computed["goes on"] == 900
    assert 300 < computed["aborts"] < 800


@pytest.mark.long
def test_the_causes_are_printed(data, tmp_path, capsys):
    script = load("scripts/lmbench_causes.py")
    assert script.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    script.FROM_SEEN = {"as seen": SEEN}
    assert script.main([str(data)]) == 0
    out = capsys.readouterr().out
    assert "| recorded | 1 | 1 |  |" in out
    assert "| as seen | 1 | 1 | +0% |" in out
    users = np.array([0, 1, 0, 3])
    sent = rows(1.0, (100, 100, 100, 100), range(4)).assign(ttft_s=[0.5, 0.5, 0.5, 9.0], generation_s=10.0)
    assert script.held_blocks(sent, sent, users) == (3.0, 3, 13 + 11), "the two prompts of one user share blocks"
    assert script.held_blocks(sent.iloc[:3], sent.iloc[:3], users) is None


@needs_data
def test_prompts_that_follow_their_conversation_at_once_have_short_first_tokens():
    users = users_of(FOLDER)
    assert len(set(users.tolist())) == 55
    for file, hits in zip(ONE, (26, 28), strict=True):
        rate, sent = next(of_rates(FOLDER / f"{file}.csv", "sharegpt"))
        assert rate == 0.5
        cold = send(sent, Servers(1, gateway=None)).requests["ttft_s"].to_numpy()
        found = send(sent, Servers(1, gateway=None, conversations=True), users).requests
        hit = (found["cached_tokens"] > 0.1 * found["prompt_tokens"]).to_numpy()
        share = sent["ttft_s"].to_numpy() / cold
        assert hit.sum() == hits
        assert share[hit].max() < 0.5
        assert np.median(share[~hit]) > 1.0


@pytest.mark.long
@needs_data
def test_counts_of_what_times_out_are_within_a_quarter_and_as_stated_they_are_not():
    users = users_of(FOLDER)
    errors = {"stated": {}, "least_loaded": {}, "round_robin": {}}
    for rate, sent, answered in sent_to_router(FOLDER):
        for name, servers in (("stated", STATED), ("least_loaded", SEEN),
                              ("round_robin", SEEN._replace(router="round_robin"))):
            errors[name][rate] = timed_out(send(sent, servers, users)) / (len(sent) - len(answered)) - 1
    busy = {name: [error for rate, error in of.items() if rate >= 2] for name, of in errors.items()}
    assert len(busy["stated"]) == 17
    assert max(map(abs, busy["least_loaded"])) < 0.125
    assert max(map(abs, busy["round_robin"])) < 0.19
    assert min(busy["stated"]) < -0.45, "memory and aborts are what is missing"


def test_the_effect_of_a_router_is_that_of_the_requests_that_both_pairs_answer(data):
    folder = data / "llm-d-lmbench"
    found = dict(effects(folder, {"nothing": PLAIN, "a hop": PLAIN._replace(gateway=HOP)}))
    assert found["measured"] == [0.0]      # the made-up set has one of the rates, and equal first tokens
    assert list(intervals(folder, 50)) == [(0.0, 0.0)]
    assert found["nothing"] == [0.0]
    assert found["a hop"] == pytest.approx([HOP_S], abs=1e-9)
    assert [(rate, answered.index.tolist()) for rate, _, answered in paired(folder, "sharegpt")] == [
        (0.5, [0, 2, 3]), (2.0, [0, 2, 3])]


@needs_data
def test_first_tokens_of_short_prompts_come_later_behind_the_gateway():
    later = dict(hops(FOLDER))
    assert later[0.5] == pytest.approx(HOP_S, abs=0.0005), "the rate that it was taken from"
    assert 0.004 < min(later.values()) < max(later.values()) < 0.019
