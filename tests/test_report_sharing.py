"""Runs shared in a folder and on a hub: what is pushed is what is pulled, and damage is refused."""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading

import pytest
import torch
from typer.testing import CliRunner

import jointenergy as je
from jointenergy.cli.main import app
from jointenergy.errors import InputError
from jointenergy.metrics.registry import Metric
from jointenergy.report.cards import card
from jointenergy.report.results import Result
from jointenergy.report.sharing import CARD, FILES, MODEL, SUMS
from jointenergy.training.health import PROTOCOL

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """The part of the Hugging Face hub's interface that its client uses for small files, on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def say(self, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        host = f"http://127.0.0.1:{self.server.server_address[1]}/me/digits"
        self.server.tokens.add(self.headers["authorization"])
        if self.path == "/api/repos/create":
            self.say({"url": host, "id": "me/digits", "name": "me/digits"})
        elif self.path == "/api/validate-yaml":
            self.say({"errors": [], "warnings": []})
        elif self.path == "/api/models/me/digits/preupload/main":
            asked = json.loads(body)["files"]
            self.say({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]})
        elif self.path.startswith("/api/models/me/digits/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.say({"commitUrl": f"{host}/commit/{REVISION}", "commitOid": REVISION})
        else:
            self.send_error(404)

    def do_GET(self):
        files = self.server.files
        found = re.fullmatch(rf"/me/digits/resolve/{REVISION}/([\w.]+)", self.path)
        if found and found[1] in files:
            content = files[found[1]]
            self.say(content, etag=f'"{len(content)}"', x_repo_commit=REVISION)
        elif self.path.startswith("/api/models/me/digits/revision/") and files:
            self.say({"id": "me/digits", "sha": REVISION, "siblings": [{"rfilename": name} for name in files]})
        elif self.path.startswith("/api/models/me/digits/tree/") and files:
            self.say([{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in files.items()])
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 (the name that the server looks for)

    def log_message(self, *words):
        pass


@pytest.fixture
def hub(monkeypatch):
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def run():
    return je.load("digits-gibbs")


def test_a_pushed_run_is_pulled_as_it_was(run, tmp_path):
    """Fails where weights, labels or thresholds are lost on the way."""
    place = je.push(run, tmp_path / "shared", figures={"accuracy": 0.9444, "healthy": 1.0})
    again = je.load(je.pull(place, tmp_path / "copy"))
    x = torch.linspace(-1, 1, 5 * 64).view(5, 64)
    assert torch.equal(again.log_density(x), run.log_density(x))
    assert again.labels == run.labels
    assert torch.equal(again.detect(x).inside, run.detect(x).inside)
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == sorted(FILES)
    text = (tmp_path / "copy" / CARD).read_text("utf-8")
    assert "| accuracy | 0.944 |" in text
    assert "are healthy" in text
    assert 'je.load("model.safetensors")' in text
    assert "license" not in text.split("---")[1]  # the owner of a run chooses it


def test_a_hub_keeps_the_same_files(run, hub, tmp_path):
    assert je.push(run, "hf://me/digits") == "hf://me/digits"
    assert sorted(hub.files) == sorted(FILES)
    assert hub.tokens == {"Bearer hf_of_a_test"}
    again = je.load(je.pull("hf://me/digits", tmp_path / "copy"))
    x = torch.zeros(2, 64)
    assert torch.equal(again.log_density(x), run.log_density(x))


def test_damage_on_the_way_is_refused_and_nothing_is_kept(run, hub, tmp_path):
    je.push(run, "hf://me/digits")
    hub.files[MODEL] = hub.files[MODEL][:-1] + b"?"
    with pytest.raises(InputError, match=r"model\.safetensors of hf://me/digits has another sha256 than SHA256SUMS"):
        je.pull("hf://me/digits", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_shell_pushes_and_pulls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell = CliRunner()
    assert shell.invoke(app, ["push", "digits-gibbs", "shared", "--half"]).exit_code == 0
    found = shell.invoke(app, ["pull", "shared", "--to", "models"])
    assert "written to models/shared/model.safetensors" in found.output + (found.stderr or "")
    assert (tmp_path / "models" / "shared" / MODEL).stat().st_size < 200_000  # half of float32
    assert je.load("models/shared").labels == je.load("digits-gibbs").labels  # a folder opens, too
    (tmp_path / "models" / "inner").mkdir()
    assert shell.invoke(app, ["pull", "models/inner/../shared", "--to", "deep/er"]).exit_code == 0
    assert (tmp_path / "deep" / "er" / "shared" / MODEL).is_file()


def test_a_card_keeps_apart_what_was_not_measured_on_its_file(run):
    """Fails where cells of this file are empty, or where seeds of the first verdict are called healthy and no more."""
    metrics = {"accuracy": Metric([0.9, 0.8]), "ood_auroc.noise.log_density": Metric([0.7, 0.7])}
    results = (
        Result(
            *("digits-gibbs", "jointenergy reproduce digits-gibbs", "0" * 40, "one CPU", "2026-11-18", 1.0, (0, 1)),
            metrics={**metrics, "healthy": Metric([1.0, 0.0], protocol)},
        )
        for protocol in ("", PROTOCOL)
    )
    old, new = (card(run, result, figures={"accuracy": 0.95}) for result in results)
    assert "| accuracy | 0.950 | 0.850 | 0.071 |" in old
    assert "not measured on this file | mean of 2 seeds | standard deviation |" in old
    assert "| ood_auroc.noise.log_density | 0.700 | 0.000 |" in old
    assert "|  |" not in old
    assert "1 of 2 seeds ended healthy, judged by the first verdict, on energies alone" in old
    assert "1 of 2 seeds ended healthy, judged by energies, movement, looks" in new


def test_the_card_of_a_run_by_fit_says_how_it_was_trained(tmp_path):
    """Fails where the card of a network of your own says nothing of its rows, objective and chains."""
    x = torch.randn(100, 2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.SiLU(), torch.nn.Linear(8, 2))
    kernel = je.kernels.Langevin(0.1, 0.2)
    trained = je.fit(net, (x, (x[:, 0] > 0).long()), kernel=kernel, steps=3, batch_size=20, iterations=2, verbose=False)
    je.push(trained, tmp_path / "shared")
    text = (tmp_path / "shared" / CARD).read_text("utf-8")
    assert "a classifier whose logits are read as log p(x, y)" in text
    assert "Rows given to `fit`: 90 rows for training and 10 held out." in text
    assert "with seed 0: 2 iterations with batches of 20, objective 1 log_p_x + 1 log_p_y_given_x" in text
    assert "chains of 3 steps (Langevin, step_size 0.1, noise_scale 0.2)" in text


def test_labels_are_escaped_in_the_card():
    """Fails where a label of a file that somebody else wrote ends the head of the card, or reaches a terminal raw."""
    labels = je.LabelSpace({"odd": ["\x1b[2J", "---\nlicense: x", "<b>", "|a|"]})
    run = je.wrap(torch.nn.Linear(3, 4), labels, bounds=(0, 1), event_shape=(3,))
    text = card(run)
    assert "\x1b" not in text
    assert "\nlicense" not in text
    assert "<b>" not in text
    assert "\\|a\\|" in text


def other(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (lambda t: t / "nowhere", "is not a pushed run: it has no SHA256SUMS"),
        (lambda t: other(t / "a", SUMS, b"\x00" * 10), "is damaged, or not of a pushed run: push the run again"),
        (lambda t: other(t / "a", SUMS, b"\xff"), "is not UTF-8 text"),
        (lambda t: other(t / "a", SUMS, b"0" * 64 + b"  ../model.safetensors"), "is damaged"),
        (lambda t: other(t / "a", SUMS, b"0" * 64 + b"  model.safetensors\n"), "is damaged"),
        (lambda t: other(t / "a", SUMS, f"{'0' * 64}  {MODEL}\n{'0' * 64}  {CARD}\n".encode()), "there is no file"),
        (lambda t: other(t / "a", SUMS, b"0" * 10_000), "more than the limit"),
        (lambda t: "https://example.org/a", "a place is a folder or hf://OWNER/NAME"),
        (lambda t: "hf://digits", "a place on the hub is hf://OWNER/NAME"),
        (lambda t: "hf://me/other", "hf://me/other could not be read"),
    ],
)
def test_what_cannot_be_pulled_is_said_in_one_sentence(hub, tmp_path, place, message):
    with pytest.raises(InputError, match=message):
        je.pull(place(tmp_path), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_other_files_are_not_overwritten(run, tmp_path):
    other(tmp_path / "mine", MODEL, b"mine")
    with pytest.raises(InputError, match="holds something else than a pushed run"):
        je.push(run, tmp_path / "mine")
    place = je.push(run, tmp_path / "shared")
    for name in (MODEL, CARD, SUMS, "other.iso"):
        mine = other(tmp_path / f"with-{name}", name, b"mine")
        for call in (lambda mine=mine: je.pull(place, mine), lambda mine=mine: je.push(run, mine)):
            with pytest.raises(InputError, match="holds something else than a pushed run"):
                call()
        assert [(p.name, p.read_bytes()) for p in mine.iterdir()] == [(name, b"mine")]
    assert je.push(run, place) == place  # one's own files are replaced
    with pytest.raises(InputError, match="push takes a run"):
        je.push("runs/demo", tmp_path / "new")
