"""LabelSpace: names in, indices out, codes, enumeration, and one sentence for every wrong input."""

import numpy as np
import pytest
import torch

from jointenergy.errors import EnumerationError, InputError
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, LabelSpace

ANIMALS = LabelSpace({"animal": ["cat", "dog", "owl"], "indoors": 2})


@pytest.mark.parametrize(
    ("labels", "n_labels", "n_codes", "n_states"),
    [
        (LabelSpace({"class": 10}), 1, 10, 10),
        (LabelSpace.binary([f"attribute{i}" for i in range(23)]), 23, 46, 2**23),
        (LabelSpace({"column": 16, "row": 16}), 2, 32, 256),
        (LabelSpace.none(), 0, 0, 1),
        (ANIMALS, 2, 5, 6),
    ],
)
def test_sizes(labels, n_labels, n_codes, n_states):
    assert (len(labels), labels.n_codes, labels.n_states) == (n_labels, n_codes, n_states)
    assert labels.enumerate(range(min(2, n_labels))).shape[1] == min(2, n_labels)


def test_names_in_indices_out():
    y = ANIMALS.encode({"animal": "owl"}, n=2)
    assert y.tolist() == [[2, MISSING]] * 2
    assert ANIMALS.encode({"indoors": 1, "animal": 0}).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "column",
    [np.array([2, -1, 0]), torch.tensor([[2], [-1], [0]]), [2, -1, "cat"], np.array([2, -1, 0], dtype=np.int8)],
    ids=["array", "column", "list", "bytes"],
)
def test_a_label_has_a_value_for_each_row(column):
    """Fails if labels by name are one value for all rows and nothing else."""
    assert ANIMALS.given({"animal": column, "indoors": 1}, 3).tolist() == [[2, 1], [-1, 1], [0, 1]]
    assert ANIMALS.decode(torch.tensor([[1, MISSING], [0, 1]])) == [
        {"animal": "dog"},
        {"animal": "cat", "indoors": "1"},
    ]
    assert ANIMALS.given(None, 3).tolist() == [[MISSING, MISSING]] * 3
    assert ANIMALS.subspace(["indoors"]).names == ("indoors",)
    assert LabelSpace({"animal": ["cat", "dog", "owl"], "indoors": 2}) == ANIMALS
    assert hash(ANIMALS) == hash(LabelSpace({"animal": ["cat", "dog", "owl"], "indoors": 2}))


def test_codes_and_enumeration_agree():
    states = ANIMALS.enumerate()
    assert states.tolist() == [[a, i] for a in range(3) for i in range(2)]
    codes = ANIMALS.one_hot(states)
    assert codes.sum(1).tolist() == [2.0] * 6
    assert codes[3].tolist() == [0, 1, 0, 0, 1]
    assert torch.equal(ANIMALS.from_one_hot(codes), states)
    assert ANIMALS.enumerate([1]).tolist() == [[0], [1]]
    assert LabelSpace.none().enumerate().shape == (1, 0)


@pytest.mark.parametrize("cardinalities", [(3, 3, 3), (2,) * 50, (4,), (2, 4, 3)])
def test_the_largest_entry_of_each_block_is_its_label(cardinalities):
    space = LabelSpace({f"l{k}": c for k, c in enumerate(cardinalities)})
    code = torch.rand(2, 5, space.n_codes, generator=torch.Generator().manual_seed(0))
    expected = [b.argmax(-1) for b in code.split(cardinalities, dim=-1)]
    assert torch.equal(space.from_one_hot(code), torch.stack(expected, -1))
    # Not side by side in memory.
    turned = code.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(space.from_one_hot(turned), torch.stack(expected, -1))


def test_allowed_entries_of_a_code():
    y = torch.tensor([[2, MISSING], [MISSING, 0]])
    assert ANIMALS.allowed(y).int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]


def test_single_column_is_accepted_flat():
    assert LabelSpace({"class": 4}).check(torch.tensor([0, 3, -1])).shape == (3, 1)
    assert LabelSpace({"class": 4}).check(torch.tensor([0, 3], dtype=torch.uint8)).dtype == torch.int64


def test_enumeration_has_a_stated_limit():
    big = LabelSpace.binary([f"a{i}" for i in range(13)])
    with pytest.raises(
        EnumerationError, match=rf"8,192 states, more than the {ENUMERATION_LIMIT:,}.*GibbsWithGradients"
    ):
        big.enumerate()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ANIMALS.check(torch.zeros(4, 3).long()), r"2 column\(s\), one for each of animal, indoors, got shape"),
        (lambda: ANIMALS.check(torch.zeros(4).long()), r"2 column\(s\)"),
        (lambda: ANIMALS.check(torch.tensor([[0, 1], [3, 0]])), r"'animal' takes the values 0 to 2.*row 1 has 3"),
        (lambda: ANIMALS.check(torch.tensor([[0, -2]])), r"'indoors' takes .* or -1 for missing; row 0 has -2"),
        (
            lambda: ANIMALS.check(torch.tensor([[0, -1]]), complete=True),
            r"'indoors' takes the values 0 to 1; row 0 has",
        ),
        (lambda: ANIMALS.check(torch.zeros(4, 2)), r"must be integers \(torch.int64\), got torch.float32.*y.long\(\)"),
        (lambda: ANIMALS.check([[0, 1]]), "integer tensor, got list"),
        (lambda: ANIMALS.check(torch.zeros(3, 2).long(), n=4), "3 rows where x has 4"),
        (lambda: ANIMALS.encode({"animals": 1}), "no label called 'animals': did you mean 'animal'"),
        (lambda: ANIMALS.encode({"weight": 1}), "the known ones are 'animal', 'indoors'"),
        (lambda: ANIMALS.encode({"animal": "dogg"}), "no value 'dogg': did you mean 'dog'"),
        (lambda: ANIMALS.encode({"animal": 3}), "takes the values 0 to 2, got 3"),
        (lambda: ANIMALS.encode({"animal": 1.0}), "no value 1.0"),
        (lambda: ANIMALS.encode({"animal": np.zeros(400, int)}), "has 400 values for 1 row: give one for each"),
        (lambda: ANIMALS.encode({"animal": np.zeros((2, 2), int)}, 2), "is a number or a name, got list"),
        (lambda: ANIMALS.encode({"animal": [0, 3]}, 2), "takes the values 0 to 2, got 3"),
        (lambda: ANIMALS.encode({"animal": {}}), "a value of label 'animal' is a number or a name, got dict"),
        (lambda: LabelSpace({"a": 1}), "'a' needs at least 2 values, got 1"),
        (lambda: LabelSpace({"a": ["x", "x"]}), "names a value twice"),
        (lambda: LabelSpace({"a": "xy"}), "number of values or a list"),
        (lambda: LabelSpace({"": 2}), "non-empty name"),
        (lambda: LabelSpace.binary(["a", "a"]), "named twice"),
    ],
)
def test_bad_input(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
