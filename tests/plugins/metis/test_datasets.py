"""Files of data sets: `hw_profiles/rag_datasets/NAME.yaml`, or a path; one line for each mistake."""

from __future__ import annotations

import numpy as np
import pytest

from hermes.config.data_files import resource_dir
from hermes.errors import InputError
from hermes.hardware.descriptions.files import names_in
from hermes.plugins.metis.datasets import dataset

FOLDER = resource_dir("hw_profiles") / "rag_datasets"
SQUAD = (FOLDER / "squad.yaml").read_text(encoding="utf-8")


def test_two_sets_of_the_four_data_sets():
    names = {"finsec", "musique", "qmsum", "squad"}
    assert set(names_in("rag_datasets")) == names | {f"{name}-3n" for name in names}
    assert all(dataset(name).name == name for name in names_in("rag_datasets"))


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SQUAD.replace("name: squad", "name: mine").replace("[0.85, 0.15]", "[0, 0, 1]"))
    one = dataset(str(path))
    assert (one.name, one.counts, one.mean_pieces) == ("mine", [3], 3.0)
    assert {one.draw(np.random.default_rng(seed)).profile.pieces for seed in range(20)} == {3}


@pytest.mark.parametrize(("before", "after", "said"), [
    ("pieces: [0.85, 0.15]", "pieces: [0, 0]", "pieces: expected a weight above 0"),
    ("pieces: [0.85, 0.15]", "pieces: [-1]", "pieces.0"),
    ("pieces: [0.85, 0.15]", f"pieces: {[1] * 11}", "pieces"),
    ("input_tokens: [400, 2000]", "input_tokens: [2000, 400]", "input_tokens: expected least, then most"),
    ("output_tokens: [5, 10]", "output_tokens: [5]", "output_tokens"),
    ("chunk_tokens: 400", "chunk_tokens: 0", "chunk_tokens"),
    ("joint: 0.10", "joint: 1.1", "joint"),
    ("precision: 0.75", "precision: 1", "precision"),
    ("joint: 0.10", "jiont: 0.10", "jiont"),
    ("hermes-rag-dataset/1", "hermes-rag-dataset/2", "format"),
    ("task: single-hop QA\n", "", "task"),
])
def test_a_mistake_in_a_file_is_one_line_with_its_place(tmp_path, before, after, said):
    assert before in SQUAD
    path = tmp_path / "mine.yaml"
    path.write_text(SQUAD.replace(before, after))
    with pytest.raises(InputError) as caught:
        dataset(str(path))
    line = str(caught.value)
    assert said in line
    assert str(path) in line
    assert "\n" not in line


def test_an_unknown_data_set():
    with pytest.raises(InputError, match=r"a data set of RAG queries: one of finsec, .*did you mean 'squad'"):
        dataset("squat")
    with pytest.raises(InputError, match="an existing file"):
        dataset("no/such.yaml")
