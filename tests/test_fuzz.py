"""Every reader and every command fed with mutated files: an answer or one sentence, soon, whatever is in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import Target, feed, targets
from tests.small_run import make_place

CORPUS = Path(__file__).with_name("corpus")
EXAMPLES = 40  # of each target: about two minutes for all of them on one core


class TestFuzz:
    """One process makes the files that all of them begin with."""

    @pytest.fixture(scope="class")
    def scratch(self, tmp_path_factory):
        return tmp_path_factory.mktemp("scratch")

    @pytest.fixture(scope="class")
    def all_targets(self, tmp_path_factory, scratch):
        return targets(make_place(tmp_path_factory.mktemp("place")), scratch)

    @pytest.mark.slow
    def test_valid_files_are_taken(self, all_targets, scratch):
        # Else nothing but refusals would be tested.
        assert {name: feed(target, target.content, scratch) for name, target in all_targets.items()} == dict.fromkeys(
            all_targets, True
        )

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_mutated_files(self, all_targets, scratch):
        for target in all_targets.values():
            fuzz(target, scratch)

    @pytest.mark.slow
    def test_stored_files(self, all_targets, scratch):
        # Files that once were findings, by the name of their target.
        stored = sorted(CORPUS.glob("*/*"))
        assert stored
        for path in stored:
            feed(all_targets[path.parent.name.replace("_", " ")], path.read_bytes(), scratch)


def fuzz(target: Target, scratch: Path) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(st.randoms(use_true_random=False))
    def examples(random):
        feed(target, target.mutate(target.content, random), scratch)

    examples()
