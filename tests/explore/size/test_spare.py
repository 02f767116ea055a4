"""`hermes size --spare`: the SLO holds while one unit is lost."""

import json
import math

import pytest
from test_size import SMALL

from hermes import simulate
from hermes.cli import main
from hermes.errors import InputError
from hermes.explore.objective import missed
from hermes.explore.size import Kind, Tried, hourly, size
from hermes.explore.size.spare import Loss, loss_option, whole
from hermes.explore.size.text import lines, plain
from hermes.explore.sweep.figures import figures
from hermes.hardware.descriptions.devices import load_device

MANY = SMALL | {"name": "many"}


@pytest.mark.parametrize(("loss", "clients", "devices", "spares"), [
    (Loss("client"), 7, 4, 1), (Loss("device"), 7, 4, 1),
    (Loss("node", 8), 7, 2, 4),    # four clients of two devices stand on it
    (Loss("node", 8), 7, 16, 1),   # a client on two nodes goes with either
    (Loss("zone", 3), 7, 1, 4),    # 11 in three zones: 4, 4 and 3; without one of 4 there are 7
    (Loss("zone", 3), 8, 1, 4),    # 12: 4 each
    (Loss("zone", 2), 7, 1, 7), (Loss("client"), math.inf, 1, 0)])
def test_how_many_clients_one_loss_takes(loss, clients, devices, spares):
    assert loss.spares(clients, devices) == spares
    if loss.unit == "zone":   # the fewest in all of which as many are left
        left = [total - math.ceil(total / loss.number) for total in range(40)]
        assert clients + spares == left.index(clients)


def test_the_most_clients_leave_room_for_the_spares():
    kind = Kind("l40s", 2, loss=Loss("node", 8))
    assert [kind.most(devices) for devices in (8, 10, 20, 64)] == [0, 1, 6, 28]
    assert kind.most(64, 2) == 24
    assert Kind("l40s", 2).most(64) == 32


def test_spares_are_named_counted_and_paid():
    tried = Tried(Kind("l40s", 2, 0.5, loss=Loss("node", 8)), (3, 5), None, {"cost.dollars_per_hour": 8.0})
    assert (tried.spares, tried.all_clients, tried.devices) == ((4, 4), (7, 9), 32)
    assert tried.label == "3+4P/5+4D l40s TP2"
    assert hourly(tried) == 16.0


@pytest.fixture(scope="module")
def both():
    return [size(MANY, devices=["l40s"], tps=[1], layouts=["mixed"], max_devices=8, workers=0, loss=loss)
            for loss in (None, Loss("client"))]


@pytest.mark.feature("Results, sweeps, studies", "`hermes size --spare`: the SLO kept while one is lost")
def test_k_of_n(both):
    """The answer without a spare is the fewest, k; with one it is k + 1, and k of them keep the SLO as they are."""
    plainly, safe = (one.meets[0] for one in both)
    assert safe.clients == plainly.clients
    assert safe.all_clients == (plainly.clients[0] + 1,)
    assert hourly(safe) == pytest.approx(safe.devices * load_device("l40s").price_per_hour)
    written = whole(both[1], safe)
    assert written["clients"][0]["count"] == safe.all_clients[0]
    for lost, meets in ((1, True), (2, False)):
        few = [{**written["clients"][0], "count": safe.all_clients[0] - lost}]
        assert (missed(figures(simulate({**written, "clients": few}))) is None) == meets


def test_what_it_says(both):
    safe = both[1]
    best, told = safe.meets[0], dict(lines(safe))
    assert told["answer"].startswith(f"{best.clients[0]}+1 x l40s TP1: {best.clients[0] + 1} devices")
    assert told["spare"].startswith("1 of these devices (")
    assert "for the loss of one client:" in told["spare"]
    row = safe.happens.incident
    assert row["noticed_by"] == "probe"
    assert row["back_s"] is None
    assert row["requests_failed"] > 0
    assert "(probe)" in told["as lost"]
    data = json.loads(json.dumps(plain(safe)))
    assert data["ranked"][0]["spares"] == [1]
    assert data["spare"]["as_lost"]["kind"] == "crash"
    assert "spare" not in plain(both[0])


@pytest.mark.parametrize("text", ["rack", "node:0", "node:x", "client:2", "zone:1", ""])
def test_an_unknown_unit_is_one_line(text, capsys):
    with pytest.raises(InputError, match="--spare: expected client, device, node"):
        loss_option(text)
    assert main(["size", "--model", "llama-3.1-8b", "--workload", "azure-conv-2023", "--rate", "1/s", "--slo",
                 "ttft=1s", "--spare", text]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_room_is_said():
    with pytest.raises(InputError, match="at least 2 devices, those of one client and its spares"):
        size(MANY, devices=["l40s"], tps=[1], max_devices=1, workers=0, loss=Loss("client"))
