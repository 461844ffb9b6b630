"""Published models by name: their files, checksums and figures, and what is said where there are none."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading

import pytest
import torch
from typer.testing import CliRunner

import jointenergy as je
from jointenergy import recipes
from jointenergy.cli.main import app
from jointenergy.errors import InputError
from jointenergy.recipes.data import dataset_of
from jointenergy.report import results
from jointenergy.report.cards import card
from jointenergy.runs import pretrained
from jointenergy.runs.loading import open_run

SHIPPED = [name for name, entry in pretrained.published().items() if entry.weights is not None]
MISSING = [name for name, entry in pretrained.published().items() if entry.weights is None]
MOST = 30_000_000  # bytes of all weights in the repository


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A machine without the repository's folder, whose cache is empty."""
    monkeypatch.setattr(pretrained, "REPOSITORY", tmp_path / "no-repository")
    monkeypatch.setenv(pretrained.HOME, str(tmp_path / "home"))
    monkeypatch.delenv(pretrained.BASE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_published_model_is_what_its_card_says(name, tmp_path, monkeypatch):
    """Fails where a file was changed, rounded too far, or its index or card was not written again."""
    monkeypatch.chdir(tmp_path)
    weights = pretrained.published()[name].weights
    assert weights is not None
    path = pretrained.REPOSITORY / pretrained.file_of(name)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == weights.sha256
    assert path.stat().st_size == weights.bytes
    run = je.load(name)
    assert run.recipe == recipes.load(name)
    test = dataset_of(run.recipe.data, None, "test")
    right = run.predict(test.x) == test.y.view(len(test.x), -1)
    assert f"{right.double().mean():.3f}" == f"{weights.figures['accuracy']:.3f}"
    published = results.read(pretrained.REPOSITORY.parent / "results" / f"{name}.json")
    values = published.metrics["accuracy"].values
    assert min(v for v in values if v is not None) - 0.005 < weights.figures["accuracy"]
    assert weights.figures["healthy"] == 1.0
    assert (pretrained.REPOSITORY / f"{name}.md").read_text("utf-8") == card(run, published, weights)
    assert bool(run.detect(test.x[:200]).inside.double().mean() > 0.85)  # thresholds came with it
    assert bool((run.sample(4, steps=5).x.abs() <= 1).all())


def test_all_weights_together_are_small():
    assert sum(path.stat().st_size for path in pretrained.REPOSITORY.iterdir()) < MOST


@pytest.mark.parametrize("name", MISSING)
def test_a_model_without_weights_names_the_command_that_trains_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=f"not published: train them with `jointenergy train {name} --out runs/{name}`"
    ):
        je.load(name)


def test_an_existing_path_of_that_name_wins(elsewhere):
    """Fails where a folder of the user's is passed over for the published model."""
    (elsewhere / "digits-jem").mkdir()
    with pytest.raises(InputError, match="digits-jem is not a run folder"):
        je.load("digits-jem")


def test_without_an_address_one_sentence_says_what_to_set_or_train(elsewhere):
    with pytest.raises(InputError, match=r"JOINTENERGY_MODELS, the address .* is not set: train them"):
        open_run("digits-jem")


def test_another_name_is_told_those_that_are_known():
    with pytest.raises(InputError, match="did you mean 'digits-jem'"):
        je.load("digit-jem")


def test_an_address_without_https_is_refused(elsewhere, monkeypatch):
    monkeypatch.setenv(pretrained.BASE, "http://example.org/models")
    with pytest.raises(InputError, match="https alone"):
        je.load("digits-jem")


@pytest.fixture
def host(tmp_path):
    """A host on loopback that serves a folder, and the files it was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "host"))
    (tmp_path / "host").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield tmp_path / "host", f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def test_weights_are_downloaded_once_and_checked(host, elsewhere, monkeypatch):
    """Fails where a damaged file is kept or opened, or where the cache is not used."""
    folder, base, asked = host
    name = pretrained.file_of("digits-jem")
    content = (pretrained.INDEX.parents[3] / "pretrained" / name).read_bytes()
    monkeypatch.setenv(pretrained.BASE, base)
    (folder / name).write_bytes(content[:-1] + b"?")
    with pytest.raises(InputError, match="another checksum"):
        je.load("digits-jem")
    assert pretrained.place_of("digits-jem") is None
    (folder / name).write_bytes(content)
    first = je.load("digits-jem")
    n = len(asked)
    again = je.load("digits-jem")
    assert len(asked) == n
    x = torch.zeros(1, 64)
    assert torch.equal(first.log_density(x), again.log_density(x))
    place = pretrained.place_of("digits-jem")
    assert place is not None
    place.write_bytes(content[:-1] + b"?")
    with pytest.raises(InputError, match="is not the published file"):
        je.load("digits-jem")


@pytest.mark.parametrize(("base", "where"), [(None, "in the repository"), ("https://example.org", "download")])
def test_the_list_promises_a_download_only_where_there_is_an_address(base, where, elsewhere, monkeypatch):
    if base is not None:
        monkeypatch.setenv(pretrained.BASE, base)
    done = CliRunner().invoke(app, ["models", "--json"])
    assert {record["where"] for record in json.loads(done.stdout)} == {where, "train it"}


def test_the_list_has_every_model_with_its_size_and_figures():
    done = CliRunner().invoke(app, ["models", "--json"])
    assert done.exit_code == 0
    listed = {record["name"]: record for record in json.loads(done.stdout)}
    assert list(listed) == list(pretrained.published())
    assert listed["digits-jem"]["where"] == "here"
    assert listed["digits-jem"]["MB"] == pytest.approx(0.6, abs=0.1)
    assert listed["cifar10-jem"]["where"] == "train it"
    assert listed["cifar10-jem"]["accuracy"] == pytest.approx(0.9229)


def test_a_file_of_half_the_size_answers_as_its_run(tmp_path):
    """Fails where float16 is stored and thresholds are of other weights, or where weights do not come back."""
    run = je.load("digits-jem")
    whole, half = run.export(tmp_path / "whole.safetensors"), run.export(tmp_path / "half.safetensors", half=True)
    assert half.stat().st_size < 0.55 * whole.stat().st_size
    x = run.data.x_held
    assert torch.equal(je.load(half).log_density(x), run.log_density(x))  # published weights are rounded already
    assert je.load(half).threshold().value == pytest.approx(run.threshold().value)


def test_weights_beyond_float16_are_refused(tmp_path):
    run = je.load("digits-jem")
    next(run.model.parameters()).data.fill_(1e6)
    with pytest.raises(InputError, match="beyond float16"):
        run.export(tmp_path / "half.safetensors", half=True)


@pytest.mark.parametrize("path", [None, 3, ["digits-jem"]])
def test_what_is_no_path_is_told(path):
    with pytest.raises(InputError, match="load takes a path or the name of a published model"):
        je.load(path)


def test_weights_of_a_trial_open_and_say_that_they_are_one():
    """They are listed nowhere: an unhealthy model has no published name."""
    path = pretrained.REPOSITORY / "trials" / "cifar10-jem-2026-11-18.safetensors"
    with pytest.warns(UserWarning, match="a trial: chains of 2,000 steps drift"):
        run = je.load(path)
    assert (run.sampling.steps, run.sampling.aids.denoise_for) == (200, 20)
    start = je.starts.UniformStart(-1.0, 1.0, run.event_shape)  # its own starts are those of the training images
    assert run.sample(2, {"class": "ship"}, steps=1, start=start).x.shape == (2, 3, 32, 32)
