from my_refresh import RefreshedIndex

import hermes
from hermes.testing.clients import ClientContract


class TestRefreshedIndex(ClientContract):
    def make(self):
        return RefreshedIndex(name="index", search=0.02, refresh=0.5, every=2.0)

    def test_searches_wait_for_the_refresh(self):
        """A user thinks for a second before each search of 0.1 s. Refreshes: 2.5 to 4.2 s, 6.7 to 8.4 s."""
        stages = hermes.simulate({
            "workload": {"requests": 8, "arrivals": {"kind": "closed_loop", "users": 1, "think": 1},
                         "pipeline": "search", "lengths": {"kind": "fixed", "prompt": 10, "output": 1}},
            "pipelines": {"search": {"stages": {"find": {"kind": "retrieve"}}}},
            "clients": [{"kind": "refreshed_index", "name": "index", "search": 0.1, "refresh": 1.7, "every": 2.5}],
        }).stages
        assert stages["assigned_s"].round(6).tolist() == [1, 2.1, 3.2, 5.3, 6.4, 7.5, 9.5, 10.6]
        assert stages["start_s"].round(6).tolist() == [1, 2.1, 4.2, 5.3, 6.4, 8.4, 9.5, 10.6]
        assert (stages["end_s"] - stages["start_s"]).round(6).eq(0.1).all()
