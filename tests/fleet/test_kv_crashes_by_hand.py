"""Crashes of either end of a KV transfer, by hand, to the nanosecond and the byte.

A step takes 1,000 ns and 100 ns more per prompt token (`hand_parts`), so a prompt of 10 tokens takes 2,000 ns. Its KV
is 10,000 bytes: 10,000 ns at a byte a ns. The decode client's first step computes the prompt's last token once more, in
a step like any other: 1,000 ns. Where nothing else is said, the gateway retries once, at once, and from the start;
routers take the replicas in turn; and no crash is noticed before the replica is ready again.

The prefill clients come first, so with two of them clients 0 and 1 prefill, and client 2 decodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import hand_parts
import pytest
from found_parts import handoff_of
from hand_parts import MODES, Data, Run, ask, client, fleet, s

from hermes.results.figures.utilisation import resource_uses
from hermes.results.measure import streamed

each_mode = pytest.mark.parametrize("mode", MODES)
ONCE = {"retries": 0}
LINK = {"kind": "link", "bandwidth": 1e9, "latency": 0.0, "shared": False}


@pytest.fixture(scope="module", autouse=True)
def _hand_parts() -> Iterator[None]:
    with hand_parts.registered():
        yield


def halves(prefill: Data | None, decode: Data | None, *, decoders: int = 1, blocks: tuple[int, int] = (1000, 12),
           prefillers: int = 2, scheduler: Data | None = None) -> list[Data]:
    return [client(prefill, name="p", role="prefill", count=prefillers, blocks=blocks[0], scheduler=scheduler),
            client(decode, name="d", role="decode", count=decoders, blocks=blocks[1])]


@each_mode
def test_the_source_dies_while_its_kv_waits_for_memory(mode: str) -> None:
    """The decode client has 12 blocks of a token. Requests of 10, 10 and 1 prompt tokens at 1,000, 1,500 and 3,200, the
    third's output 2, to p-0, p-1 and p-0 in turn.

    First: prompt until 3,000, KV until 13,000, tokens at 14,000 and 15,000 (its end: output 2).
    Second: prompt until 3,500 on p-1, and then it waits for 10 blocks, where 2 are free.
    Third: prompt 3,200 to 4,300. It waits behind the second, until p-1 crashes at 5,000; then its KV moves for 1,000.
    Its tokens: 7,000 and 8,000.
    The second is tried again at 5,000: it is p-1's turn, which cannot be reached. Its attempts are used up.
    """
    found = Run(halves(fleet((5000, 1)), None), [ask(1000, 10, 2), ask(1500, 10, 2), ask(3200, 1, 2)], mode,
                network=LINK)
    assert found.moves == [(2, 0, 2, 1000, 5000, 6000), (0, 0, 2, 10000, 3000, 13000)]
    assert found.finish == [15000, -1, 8000]
    assert [row for row in found.attempts if row[0] == 1] == [(1, 1, 2, 1500, 5000, "failed"),
                                                              (1, 2, 1, 5000, 5000, "failed")]


@each_mode
def test_the_source_dies_while_each_request_tries_for_memory_on_its_own(mode: str) -> None:
    """As above with a try every 2,000: the second would try at 5,500 again, and is gone at 5,000. The third finds
    memory at 4,300: its KV moves until 5,300, tokens at 6,300 and 7,300."""
    found = Run(halves(fleet((5000, 1)), None), [ask(1000, 10, 2), ask(1500, 10, 2), ask(3200, 1, 2)], mode,
                network=LINK, kv_transfer_retry=s(2000), gateway=ONCE)
    assert found.moves == [(2, 0, 2, 1000, 4300, 5300), (0, 0, 2, 10000, 3000, 13000)]
    assert found.finish == [15000, -1, 7300]


@each_mode
@pytest.mark.parametrize("shared", [False, True])
def test_the_source_dies_while_its_kv_is_on_the_network(mode: str, shared: bool) -> None:
    """The decode client has 12 blocks. Two requests at 1,000 and 1,500, prompts until 3,000 (p-0) and 3,500 (p-1).

    The first's KV moves from 3,000; p-0 dies at 7,000, when 4,000 bytes have left. Its 10 blocks at the decode client
    are free at that instant, so the second's KV moves from 7,000 to 17,000; its tokens come at 18,000 and 19,000.
    The first is tried again on p-1 (p-0 and p-1 in turn: the third choice is p-0, which cannot be reached; the fourth
    is p-1) at 7,000: prompt until 9,000; memory at 19,000; KV until 29,000, tokens at 30,000 and 31,000.
    """
    found = Run(halves(fleet((7000, 0)), None), [ask(1000, 10, 2), ask(1500, 10, 2)], mode,
                network=LINK | {"shared": shared}, gateway={"retries": 2})
    assert found.moves == [(0, 0, 2, 4000, 3000, 7000), (1, 1, 2, 10000, 7000, 17000), (0, 1, 2, 10000, 19000, 29000)]
    assert found.attempts == [(0, 1, 2, 1000, 7000, "failed"), (1, 1, 2, 1500, 19000, "completed"),
                              (0, 2, 0, 7000, 7000, "failed"), (0, 3, 2, 7000, 31000, "completed")]
    assert found.finish == [31000, 19000]
    assert found.wasted() == (1, 10, 0)
    assert [row for row in found.stages if row[6] == 7000] == [(0, "decode", 2, 3000, -1, -1, 7000, 0)]
    network = handoff_of(found.simulation).network
    assert (network.bytes_sent, network.bytes_received, network.bytes_cancelled) == (30000, 20000, 10000)


@each_mode
@pytest.mark.parametrize("shared", [False, True])
def test_the_target_dies_while_kv_is_on_the_network(mode: str, shared: bool) -> None:
    """One prefill client with 12 blocks, two decode clients (1 and 2 here) that start within 500 ns.

    First at 1,000: prompt until 3,000, KV to d-0 from 3,000. Second at 4,000 waits for blocks. d-0 dies at 7,000, when
    4,000 bytes have left: the source's blocks are free, and the second's prompt runs from 7,000 to 9,000; its KV goes
    to d-1 until 19,000, tokens at 20,000 and 21,000.
    The first is behind it in the queue again from 7,000. It gets blocks at 19,000: prompt until 21,000, KV to d-0 (in
    turn) until 31,000, tokens at 32,000 and 33,000.
    """
    clients = halves(None, fleet((7000, 0), up=500), prefillers=1, decoders=2, blocks=(12, 1000))
    found = Run(clients, [ask(1000, 10, 2), ask(4000, 10, 2)], mode, network=LINK | {"shared": shared})
    assert found.moves == [(0, 0, 1, 4000, 3000, 7000), (1, 0, 2, 10000, 9000, 19000), (0, 0, 1, 10000, 21000, 31000)]
    assert found.finish == [33000, 21000]
    assert found.attempts == [(0, 1, 1, 1000, 7000, "failed"), (1, 1, 2, 4000, 21000, "completed"),
                              (0, 2, 1, 7000, 33000, "completed")]
    assert found.runs(0) == [(1000, 3000, 1), (7000, 9000, 1), (19000, 21000, 1)]
    assert found.members(1) == [(0, 7000, "down", "crashed"), (1, 7000, "starting", "restart"),
                                (1, 7500, "ready", "started")]


@each_mode
def test_the_target_dies_while_kv_waits_for_its_memory(mode: str) -> None:
    """One prefill client with 22 blocks, one decode client with 12. Two requests at 1,000 and 1,500.

    First: prompt until 3,000, KV from 3,000. Second: prompt 3,000 to 5,000, then it waits for memory. The decode client
    dies at 6,000, when 3,000 bytes of the first have left; it is ready at 6,500. Both are tried again at 6,000, in
    order of their first attempts: one step for both prompts until 9,000. The first's KV moves until 19,000; tokens at
    20,000 and 21,000. The second's then: until 31,000, tokens at 32,000 and 33,000.
    """
    clients = halves(None, fleet((6000, 0), start=1, up=500), prefillers=1, blocks=(22, 12))
    found = Run(clients, [ask(1000, 10, 2), ask(1500, 10, 2)], mode, network=LINK)
    assert found.moves == [(0, 0, 1, 3000, 3000, 6000), (0, 0, 1, 10000, 9000, 19000), (1, 0, 1, 10000, 21000, 31000)]
    assert found.runs(0) == [(1000, 3000, 1), (3000, 5000, 1), (6000, 9000, 1)]
    assert found.finish == [21000, 33000]
    assert found.wasted() == (2, 20, 0)


@each_mode
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("end", ["source", "target"])
def test_kv_arrives_before_a_crash_of_its_instant(mode: str, shared: bool, end: str) -> None:
    """Prompt until 3,000, KV until 13,000. If the source crashes at 13,000, the decode client has the KV: tokens at
    14,000 and 15,000. If the target does, all 10,000 bytes have moved in vain; it is ready at 13,500. Again from
    13,000: prompt until 15,000, KV until 25,000, tokens at 26,000 and 27,000."""
    crash = fleet((13000, 0), start=1, up=500)
    clients = halves(crash if end == "source" else None, crash if end == "target" else None, prefillers=1)
    found = Run(clients, [ask(1000, 10, 2)], mode, network=LINK | {"shared": shared})
    assert found.moves[0] == (0, 0, 1, 10000, 3000, 13000)
    if end == "source":
        assert found.finish == [15000]
        assert found.attempts == [(0, 1, 1, 1000, 15000, "completed")]
    else:
        assert found.moves[1:] == [(0, 0, 1, 10000, 15000, 25000)]
        assert found.finish == [27000]
        assert found.attempts == [(0, 1, 1, 1000, 13000, "failed"), (0, 2, 1, 13000, 27000, "completed")]


@each_mode
@pytest.mark.parametrize("decode_first", [False, True])
def test_both_ends_die_at_one_instant(mode: str, decode_first: bool) -> None:
    """KV moves from p-0 to d-0 from 3,000. Both crash at 7,000, when 4,000 bytes have left, in either order. The
    attempt fails once. Again on p-1 and d-1: prompt 7,000 to 9,000, KV until 19,000, tokens at 20,000 and 21,000."""
    clients = halves(fleet((7000, 0)), fleet((7000, 0)), decoders=2)
    found = Run(clients[::-1] if decode_first else clients, [ask(1000, 10, 2)], mode, network=LINK)
    p, d = (2, 0) if decode_first else (0, 2)
    assert found.moves == [(0, p, d, 4000, 3000, 7000), (0, p + 1, d + 1, 10000, 9000, 19000)]
    assert found.attempts == [(0, 1, d, 1000, 7000, "failed"), (0, 2, d + 1, 7000, 21000, "completed")]
    assert found.wasted() == (1, 10, 0)


@each_mode
def test_a_decode_client_dies_while_it_decodes(mode: str) -> None:
    """Output 5. d-0 (client 1) has tokens at 14,000 and 15,000, and crashes at 15,500. All is computed anew: prompt
    15,500 to 17,500, KV to d-1 until 27,500, tokens from 28,500 to 32,500. If the prefill client crashes at 14,500
    instead, after its KV has left, nothing is lost: 18,000."""
    clients = halves(None, fleet((15500, 0)), prefillers=1, decoders=2, blocks=(1000, 1000))
    found = Run(clients, [ask(1000, 10, 5)], mode, network=LINK)
    assert found.attempts == [(0, 1, 1, 1000, 15500, "failed"), (0, 2, 2, 15500, 32500, "completed")]
    assert found.stages[1] == (0, "decode", 1, 3000, 13000, 14000, 15500, 2)
    assert found.wasted() == (1, 10, 2)
    request = found.results.requests.iloc[0]
    assert request["ttft_s"] == pytest.approx(s(13000), abs=1e-15)
    assert request["tpot_s"] == pytest.approx(s(18500 / 4), abs=1e-15)
    clients = halves(fleet((14500, 0), start=1), None, prefillers=1, blocks=(1000, 1000))
    source = Run(clients, [ask(1000, 10, 5)], mode, network=LINK)
    assert source.finish == [18000]


@each_mode
@pytest.mark.parametrize("caching", [False, True])
def test_blocks_that_were_taken_within_the_step_of_a_crash_count_once(mode: str, caching: bool) -> None:
    """10 bytes a ns: KV takes 1,000. The decode client has 7 blocks of 4 tokens. Output 8 for the first request.

    First: prompt until 3,000, KV until 4,000. Its steps from 4,000, 5,000 and 6,000 have 10, 11 and 12 tokens in 3
    blocks; that from 7,000 has 13 in 4. Second, at 5,200 on p-1: prompt until 7,200, when it takes the other 3 blocks.
    The client crashes at 7,700: 3 x 3,000 + 7 x 700 = 13,900 blocks x ns, as a step counts the blocks at its end.
    """
    clients = halves(None, fleet((7700, 0), start=1))
    clients[1]["memory"] |= {"block_size": 4, "num_blocks": 7, "prefix_caching": caching}
    found = Run(clients, [ask(1000, 10, 8), ask(5200, 10, 2)], mode, network=LINK | {"bandwidth": 1e10}, gateway=ONCE)
    assert found.moves[1:] == [(1, 1, 2, 5000, 7200, 7700)]
    assert found.step_ends(2) == [5000, 6000, 7000]
    runs = found.record.runs
    assert int(runs["kv_block_ns"][runs["client"] == 2].sum()) == 13900
    assert int(runs["used_blocks"][runs["client"] == 2].max()) == 7


# -- layer by layer ----------------------------------------------------------------------------------------------------


# A model of 32 layers. Chunks of 4, 4 and 2 tokens take 1,400, 1,400 and 1,200 ns. A chunk of T ns and V bytes has its
# first layer after T / 32 (44 ns, 38 ns for the third). From then on V x 31 / 32 bytes (3,875; 1,937 for the third)
# move at a byte a ns. The last layer is ready at the chunk's end.
LAYERWISE: Data = {"network": LINK, "kv_transfer": "layerwise"}
LAYERS: Data = {"model": "llama-3.1-8b", "allow_mismatch": True}


@each_mode
def test_the_source_dies_while_layers_move(mode: str) -> None:
    """p-0's first chunk runs from 1,000 to 2,400. Its KV moves from 1,044 on; p-0 dies at 3,000, when 1,956 of 3,875
    bytes have left.

    On p-1 from 3,000: chunks until 4,400, 5,800 and 7,000. The first 3,875 bytes move from 3,044 to 6,919. By then the
    third chunk has all but its last 63 bytes ready or on the way: 9,937 - 3,875 = 6,062 move until 12,981, and the last
    63 until 13,044. Tokens at 14,044 and 15,044.
    """
    clients = halves(fleet((3000, 0)), None, blocks=(1000, 1000), scheduler={"max_num_batched_tokens": 4})
    found = Run([one | LAYERS for one in clients], [ask(1000, 10, 2)], mode, **LAYERWISE)
    assert found.moves == [(0, 0, 2, 1956, 3000, 3000), (0, 1, 2, 10000, 7000, 13044)]
    assert found.finish == [15044]
    assert found.record.attempts["computed"].tolist() == [8, 0]
    assert found.runs(0) == [(1000, 2400, 1), (2400, 3000, 0)]


@each_mode
@pytest.mark.parametrize("delay", [1500, 10000])
def test_the_target_dies_while_layers_move(mode: str, delay: int) -> None:
    """d-0 (client 1) dies at 3,000, when 1,956 bytes have left. The prefill client goes on with the first attempt until
    the abort arrives at 4,500, that is to the end of its third chunk. If the abort would arrive at 13,000, the prompt
    is complete then, and has nowhere to go.

    The second attempt comes at 3,000, in the chunk until 3,800, and has 2 of the next step's 4 tokens: 3,800 to 5,200.
    Alone then: 4 until 6,600 and 4 until 8,000. Its KV goes to d-1: the first step's 2,000 bytes have their first layer
    at 3,844; 2,000 - 63 = 1,937 move until 5,781. The second step's offer waits since 5,201 (63 bytes), and since
    5,244 for all but its last layer: 6,000 - 125 = 5,875. So 3,938 move from 5,781 until 9,719. The third step's
    9,875 were ready at 8,000, but its prefill has ended then: the rest, 10,000 - 5,875 = 4,125, moves until 13,844.
    Tokens at 14,844 and 15,844.
    """
    clients = halves(None, fleet((3000, 0)), decoders=2, prefillers=1, blocks=(1000, 1000),
                     scheduler={"max_num_batched_tokens": 4})
    found = Run([one | LAYERS for one in clients], [ask(1000, 10, 2)], mode, gateway={"cancel_delay": s(delay)},
                **LAYERWISE)
    assert found.runs(0) == [(1000, 2400, 1), (2400, 3800, 1), (3800, 5200, 1), (5200, 6600, 1), (6600, 8000, 1)]
    assert found.stages[0] == (0, "prefill", 0, 1000, 1000, 5200, 5200, 0)
    assert found.moves == [(0, 0, 1, 1956, 3000, 3000), (0, 0, 2, 10000, 8000, 13844)]
    assert found.attempts == [(0, 1, 0, 1000, 3000, "failed"), (0, 2, 2, 3000, 15844, "completed")]
    assert found.wasted() == (1, 10, 0)


# -- prefills in vain --------------------------------------------------------------------------------------------------


@each_mode
def test_a_prompt_is_computed_in_vain_if_its_decode_client_cannot_be_reached(mode: str) -> None:
    """d-0 (client 1) crashes at 2,000. It is its turn at 3,000, when the prompt is computed: the attempt fails. Again
    on p-0 from 3,000: prompt until 5,000, KV to d-1 until 15,000, tokens at 16,000 and 17,000."""
    clients = halves(None, fleet((2000, 0)), prefillers=1, decoders=2)
    found = Run(clients, [ask(1000, 10, 2)], mode, network=LINK)
    assert found.attempts == [(0, 1, 0, 1000, 3000, "failed"), (0, 2, 2, 3000, 17000, "completed")]
    assert found.moves == [(0, 0, 2, 10000, 5000, 15000)]
    assert found.finish == [17000]
    assert found.wasted() == (1, 10, 0)
    alone = Run(halves(None, fleet((2000, 0), start=1, probe=(1, 1, 0, 0)), prefillers=1), [ask(1000, 10, 2)], mode,
                network=LINK, gateway=ONCE)
    assert alone.reasons == {0: "failed: no decode replica is ready"}
    assert alone.ends == [3000]


@each_mode
@pytest.mark.parametrize("begun", ["fail", "restart"])
def test_the_user_has_the_prefills_token_when_its_target_dies(mode: str, begun: str) -> None:
    """`first_token: prefill`: the user has it at 3,000. d-0 dies at 7,000, while KV moves. The stream has begun.

    Made again: prompt 7,000 to 9,000, KV to d-1 until 19,000, the second token at 20,000. TTFT 2,000, TPOT 17,000.
    """
    clients = halves(None, fleet((7000, 0)), prefillers=1, decoders=2)
    found = Run(clients, [ask(1000, 10, 2)], mode, network=LINK, first_token="prefill", gateway={"begun": begun})
    assert found.wasted() == (1, 10, 1)
    if begun == "fail":
        assert found.reasons == {0: "failed: d-0 went down after the first token"}
        assert found.ends == [7000]
    else:
        assert found.finish == [20000]
        request = found.results.requests.iloc[0]
        assert request["ttft_s"] == pytest.approx(s(2000), abs=1e-15)
        assert request["tpot_s"] == pytest.approx(s(17000), abs=1e-15)


@each_mode
@pytest.mark.parametrize(("before", "crash"), [((), 1500), ((), 2500), ((1000, 2000), 20500), ((1000, 2000), 21500)])
def test_a_prompt_that_was_cut_gave_no_token_to_throw_away(mode: str, before: tuple[int, ...], crash: int) -> None:
    """`first_token: decode`: the tokens of prefills are thrown away. 700 ns of front end before each prefill.

    Without others before it, the request of 1,000 is in p-0's front end at 1,500 (p-0 runs no step at all), in its
    prompt's step at 2,500. On p-1 from the crash: 2,700; KV 10,000; two steps on d-0, whose 2 tokens are all that users
    get. With two requests before it, of 2 tokens each, the same at 20,500 and 21,500 for the request of 20,000.
    """
    clients = halves(fleet((crash, 0)), None, blocks=(1000, 1000))
    clients[0]["frontend"] = {"before": s(700)}
    asks = [ask(at, 10, 2) for at in (*before, 20000 if before else 1000)]
    found = Run(clients, asks, mode, network=LINK)
    assert found.finish[-1] == crash + 14700
    tokens, runs = streamed(found.record), found.record.runs
    assert (tokens >= 0).all()
    users = [int((tokens * runs["num_steps"])[runs["client"] == index].sum()) for index in range(3)]
    assert users == [0, 0, 2 * len(asks)]


@each_mode
def test_blocks_that_were_there_within_a_step_alone_are_no_peak(mode: str) -> None:
    """Output 20: KV of 10 tokens until 13,000, tokens from 14,000 to 33,000, the last with 29 tokens there. A prompt
    of 50 tokens is computed on p-1 from 15,400 to 21,400, when it takes 50 blocks here; p-1 crashes at 21,700, in the
    same step, and they are free. At the end of no step are more than 29 in use."""
    found = Run(halves(fleet((21700, 1)), None, blocks=(1000, 100)), [ask(1000, 10, 20), ask(15400, 50, 5)], mode,
                network=LINK, gateway=ONCE)
    assert found.moves == [(0, 0, 2, 10000, 3000, 13000), (1, 1, 2, 300, 21400, 21700)]
    assert found.finish == [33000, -1]
    assert found.results.summary["clients"]["d"]["kv_peak_blocks"] == 29


@each_mode
def test_a_link_is_used_until_the_end_of_the_run(mode: str) -> None:
    """10,000 bytes at a byte a ns, from 2,000 to 12,000. The client gives up at 20,000, at a boundary of a run of steps
    until 2,013,000: half of the time."""
    asked = ask(0, 10, 2000, patience={"total": s(20000)})
    found = Run(halves(None, None, prefillers=1, blocks=(1000, 3000)), [asked], mode,
                network=LINK | {"shared": True}, gateway=ONCE)
    assert found.record.end_ns == 20000
    [most] = [use for use in resource_uses(found.record) if use.kind == "link"]
    assert most.utilisation == pytest.approx(0.5)
    assert most.peak == pytest.approx(1.0)
