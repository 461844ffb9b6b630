"""Downloads against a server on this machine: whole, damaged, cut off, refused, and no network at all."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from jointenergy.cli.main import app
from jointenergy.data import READERS, downloads, load
from jointenergy.data.downloads import BY_HAND, SOURCES, Source, get
from jointenergy.errors import InputError
from tests.generated_data import write_idx_set


class Server(http.server.ThreadingHTTPServer):
    """Serves a few files; those in `cut` end early, and those in `flaky` do so the first time."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.flaky, self.asked = files, set(), set(), []
        self.host = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut = name in self.server.cut or name in self.server.flaky
        self.server.flaky.discard(name)
        self.wfile.write(content[: len(content) // 2] if cut else content)

    def log_message(self, *_):
        """Quietly."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between retries
    folder = write_idx_set(tmp_path / "origin")
    server = Server({path.name: path.read_bytes() for path in folder.iterdir()})
    yield server
    server.shutdown()
    server.server_close()


def source_of(server):
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in server.files.items()}
    return {"mnist": Source(server.host, sums)}


def test_whole_files_are_got_once_and_read(server, tmp_path):
    told = []
    sources = source_of(server)
    paths = get("mnist", tmp_path / "data", report=lambda *what: told.append(what), sources=sources)
    assert {p.name: p.read_bytes() for p in paths} == server.files
    assert {p.name for p in (tmp_path / "data" / "mnist").iterdir()} == set(server.files)
    for name, content in server.files.items():
        assert told.count((name, len(content), len(content))) >= 1
    assert all(0 <= done <= total for _, done, total in told)
    assert torch.equal(load("mnist", tmp_path / "data").x, load("mnist", tmp_path / "origin").x)
    before = list(server.asked)
    assert get("mnist", tmp_path / "data", sources=sources) == paths
    assert get("mnist-masks", tmp_path / "data", sources=sources) == paths  # made of the same files
    assert server.asked == before


def test_a_wrong_checksum_is_told_and_nothing_kept(server, tmp_path):
    sources = source_of(server)
    name = "t10k-images-idx3-ubyte.gz"
    server.files[name] = server.files[name][:-1] + b"x"
    with pytest.raises(
        InputError, match=rf"{name} has another checksum than the published sha256 \w+: .* was not kept"
    ):
        get("mnist", tmp_path, retries=1, sources=sources)
    assert server.asked.count(name) == 2
    left = {p.name for p in (tmp_path / "mnist").iterdir()}
    assert name not in left
    assert all(file in server.files for file in left)  # no temporary one either


def test_a_cut_connection_is_told_and_tried_again(server, tmp_path):
    sources = source_of(server)
    name = "train-images-idx3-ubyte.gz"
    server.cut.add(name)
    with pytest.raises(InputError, match=rf"{name} could not be fetched: the connection broke off; nothing was kept"):
        get("mnist", tmp_path, retries=1, sources=sources)
    assert server.asked.count(name) == 2
    assert name not in {p.name for p in (tmp_path / "mnist").iterdir()}
    server.cut.clear()
    server.flaky.add(name)
    get("mnist", tmp_path, retries=1, sources=sources)
    assert (tmp_path / "mnist" / name).read_bytes() == server.files[name]


def test_no_network_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sources = {"mnist": Source(f"http://127.0.0.1:{port}/", {"a.gz": "0" * 64})}
    with pytest.raises(InputError, match=rf"127.0.0.1:{port}/a.gz could not be fetched: the host cannot be reached"):
        get("mnist", tmp_path, retries=1, sources=sources)
    assert not list((tmp_path / "mnist").iterdir())


def test_what_the_host_refuses_is_told(server, tmp_path):
    sources = {"mnist": Source(server.host, {"gone.gz": "0" * 64})}
    with pytest.raises(InputError, match=r"gone\.gz could not be fetched: the host answered 404"):
        get("mnist", tmp_path, retries=0, sources=sources)


def test_a_file_of_the_user_is_never_overwritten(server, tmp_path):
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.parent.mkdir()
    path.write_bytes(b"my own")
    with pytest.raises(InputError, match="is there and has another checksum than the public file: remove it"):
        get("mnist", tmp_path, sources=source_of(server))
    assert path.read_bytes() == b"my own"


def test_a_folder_that_cannot_be_used_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing" / "below")
    name = next(iter(server.files))
    (tmp_path / "taken" / "mnist" / name).mkdir(parents=True)
    for to, reason in [
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "link", "File exists|No such file or directory"),
        (Path("/proc/nothing"), "No such file or directory"),
        (tmp_path / "taken", "Is a directory"),
    ]:
        sentence = rf"^{to}/mnist/{name} cannot be kept \(({reason})\): choose another folder with --to$"
        with pytest.raises(InputError, match=sentence):
            get("mnist", to, sources=source_of(server))
    assert not server.asked


def test_every_set_is_told_where_to_get():
    assert set(SOURCES) | set(BY_HAND) <= set(READERS)
    for name, sentence in {
        "celeba": "is not downloaded: accept its terms",
        "digits": "needs no download: 8 x 8 digits",
        "csv": "needs no download: your own table",
        "mnits": "no data set called 'mnits': did you mean 'mnist'",
    }.items():
        with pytest.raises(InputError, match=sentence):
            get(name, None)
    for source in SOURCES.values():
        assert source.host.startswith("https://")
        assert source.host.endswith("/")


def test_the_commands(server, tmp_path, monkeypatch):
    monkeypatch.delenv("JOINTENERGY_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(downloads, "SOURCES", source_of(server))
    listed = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert all(name in listed.output for name in READERS)
    got = CliRunner().invoke(app, ["data", "get", "mnist"])
    assert got.exit_code == 0, got.output
    assert "mnist: 4 file(s) verified; use it with --data data" in got.output
    assert (tmp_path / "data" / "mnist" / "train-images-idx3-ubyte.gz").exists()
    with pytest.raises(InputError, match="celeba"):
        CliRunner().invoke(app, ["data", "get", "celeba", "--to", str(tmp_path)], catch_exceptions=False)


def test_only_https_and_sha256_will_do():
    with pytest.raises(InputError, match=r"by https alone, got http://example\.org/"):
        Source("http://example.org/", {})
    with pytest.raises(InputError, match=r"a\.gz needs its sha256"):
        Source("https://example.org/", {"a.gz": f"md5:{'0' * 32}"})
