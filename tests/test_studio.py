"""The studio by HTTP: what each task answers, what is refused, and that one user's work holds up nobody's status."""

from __future__ import annotations

import base64
import io
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests
import torch
from PIL import Image, ImageSequence

from jointenergy import fit, load, recipes
from jointenergy.cli.main import load_command
from jointenergy.errors import InputError
from jointenergy.recipes import run_folder
from jointenergy.studio import app as server
from jointenergy.studio import serve
from jointenergy.studio.desk import placed
from jointenergy.studio.pool import Pool
from tests.small_run import TINY
from tests.studio_server import answer_of, complaint_of, events_of, serving

CSV = "a,b,c,kind\n" + "".join(f"{i % 7},{-i % 5},{(i * 3) % 11},{'uv'[i % 2]}\n" for i in range(80))


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A tiny run of a table, and its folder."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "rows.csv").write_text(CSV)
    words = (*TINY, "data.name='csv'", "data.low=-10.0", "data.high=20.0")
    loop = run_folder.create(folder / "run", recipes.load("digits-jem", words), 0, data_folder=folder)
    loop.fit()
    return folder / "run"


@pytest.fixture(scope="module")
def address(table_run):
    with serving([placed("digits-jem"), placed("digits-gibbs"), placed(table_run)]) as found:
        yield found


def bytes_of(shown):
    return np.frombuffer(base64.b64decode(shown["pixels"]), np.uint8).reshape(shown["n"], -1)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_the_page_needs_nothing_from_outside(address):
    """Fails where a file of the page is missing or loads a script, a font or a picture from another host."""
    for path in server.FILES:
        response = requests.get(address + path, timeout=10)
        assert response.status_code == 200
        outside = re.findall(
            r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}\S*", response.text.replace("http://www.w3.org/", "")
        )
        assert outside == []
        assert "default-src 'self'" in response.headers["content-security-policy"]


def test_runs_are_described(address):
    digits, gibbs, table = requests.get(f"{address}/api/runs", timeout=10).json()["runs"]
    assert (digits["kind"], digits["form"]) == ("image", [1, 8, 8])
    assert [label["name"] for label in gibbs["labels"]] == ["parity", "above_four", "loop"]
    assert (table["kind"], table["columns"], table["trains"]) == ("table", ["a", "b", "c"], True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "studio.example.org"},
        {"Host": "127.0.0.1.example.org"},
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_hosts_and_origins_are_refused(address, headers):
    """Fails where a site that rebinds its name to this machine, or a page elsewhere, is answered."""
    assert requests.get(f"{address}/api/runs", headers=headers, timeout=10).status_code == 403
    sent = requests.post(f"{address}/api/sample", json={"chains": 1, "steps": 1}, headers=headers, timeout=10)
    assert sent.status_code == 403


def test_a_form_of_another_site_is_no_task(address):
    response = requests.post(f"{address}/api/sample", data="{}", headers={"Content-Type": "text/plain"}, timeout=10)
    assert response.status_code == 400


def test_chains_are_streamed_with_their_energies(address):
    events = events_of(address, "sample", given={"digit": "3"}, chains=9, steps=30, seed=1)
    frames = [values for name, values in events if name == "frame"]
    assert [frame["step"] for frame in frames] == list(range(31))
    assert all(len(frame["energy"]) == 9 and bytes_of(frame).shape == (9, 64) for frame in frames)
    done = events[-1][1]
    assert np.array_equal(bytes_of(done), bytes_of(frames[-1]))
    assert [row["digit"] for row in done["labels"]] == ["3"] * 9
    assert np.mean(done["probs"]) > 0.8  # the model sees what was asked for
    again = answer_of(address, "sample", given={"digit": "3"}, chains=9, steps=30, seed=1)
    assert again["pixels"] == done["pixels"]


def test_another_temperature_moves_chains_further(address):
    cold, warm = (answer_of(address, "sample", chains=4, steps=40, temperature=t) for t in (0.0001, 1.0))
    rough = [np.abs(np.diff(bytes_of(done).astype(float))).mean() for done in (cold, warm)]
    assert rough[1] > rough[0]


def test_a_film_is_an_animated_gif(address):
    film = Image.open(io.BytesIO(base64.b64decode(answer_of(address, "film", chains=4, steps=12)["gif"])))
    assert film.format == "GIF"
    assert len(list(ImageSequence.Iterator(film))) > 5


@pytest.mark.parametrize(
    ("task", "body", "sentence"),
    [
        ("sample", {"given": {"digit": "12"}}, "label 'digit' has no value '12'"),
        ("sample", {"given": {"letter": "3"}}, "letter"),
        ("sample", {"chains": 65}, "chains: input should be less than or equal to 64"),
        ("sample", {"steps": 100_000}, "steps: input should be less than or equal to 2000"),
        ("sample", {"seed": -1}, "seed"),
        ("sample", {"folder": "/"}, "folder: extra inputs are not permitted"),
        ("sample", {"run": 9}, "there is no run 9: 3 are open"),
        ("sample", {"start": "buffer"}, "no persistent chains"),
        ("ask", {"input": {}}, "an input is a test row, an image or values"),
        ("ask", {"input": {"row": 0, "image": "AAAA"}}, "one of them; got row, image"),
        ("ask", {"input": {"row": 99_999}}, "no row 99,999"),
        ("ask", {"input": {"image": "AAAA"}}, "cannot be read"),
        ("ask", {"input": {"image": "%"}}, "base64"),
        ("ask", {"input": {"row": 0, "of": 2}}, "compare runs on the same x"),
        ("ask", {"run": 2, "input": {"image": "AAAA"}}, "takes rows of numbers"),
        ("ask", {"run": 2, "input": {"values": [1.0]}}, "1 values where the run takes 3"),
        ("complete", {"input": {"row": 0}}, "nothing is hidden"),
        ("complete", {"input": {"row": 0}, "hidden": [64]}, "no pixel 64"),
        ("convert", {"input": {"row": 0}, "to": {}}, "at least one new label"),
        ("nothing", {}, "there is no task 'nothing'"),
    ],
)
def test_a_wrong_request_is_one_sentence(address, task, body, sentence):
    said = complaint_of(address, task, **body)
    assert sentence in said
    assert "Traceback" not in said


def test_a_body_without_end_is_refused(address):
    body = b'{"input": {"image": "' + b"A" * (server.MOST_BODY + 10)
    response = requests.post(f"{address}/api/ask", data=body, headers={"Content-Type": "application/json"}, timeout=30)
    assert response.status_code == 400
    assert "32 MiB" in response.json()["error"]


def test_answers_about_test_rows_are_right(address):
    """Fails where rows, labels or probabilities are mixed up on their way to the page."""
    right, within = [], []
    for row in range(20):
        answer = answer_of(address, "ask", input={"row": row})
        probs = answer["labels"]["digit"]
        assert sum(probs) == pytest.approx(1, abs=1e-4)
        right.append(str(int(np.argmax(probs))) == answer["true"]["digit"])
        within.append(answer["score"]["inside"])
        assert str(int(np.argmax(probs))) in answer["set"]["digit"]
    assert np.mean(right) >= 0.9
    assert np.mean(within) >= 0.7
    assert sum(answer["score"]["counts"]) > 100
    assert len(answer["neighbors"]["distance"]) == 6
    assert answer["gradient_norm"] > 0


def test_a_drawing_is_read_and_noise_is_out_of_distribution(address):
    drawn = np.zeros((256, 256), np.uint8)
    drawn[20:236, 112:150] = 255  # a one
    one = answer_of(address, "ask", input={"image": png(drawn)})
    assert int(np.argmax(one["labels"]["digit"])) == 1
    same = answer_of(address, "ask", input={"image": png(255 - drawn), "invert": True})
    assert same["x"] == one["x"]
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    assert not answer_of(address, "ask", input={"image": png(noise)})["score"]["inside"]


def test_completions_keep_what_is_known(address):
    row = bytes_of(answer_of(address, "rows", n=1))[0]
    hidden = list(range(32, 64))
    done = answer_of(address, "complete", input={"row": 0}, hidden=hidden, chains=6, steps=60, seed=3)
    draws = bytes_of(done)
    assert (draws[:, :32] == row[:32]).all()
    assert (draws[:, 32:] != row[32:]).any()
    spread = np.array(done["spread"])
    assert (spread[:32] == 0).all()
    assert spread[32:].max() > 0


def test_a_conversion_reaches_its_label(address):
    done = answer_of(address, "convert", input={"row": 0}, to={"digit": "3"}, steps=60)
    assert done["probs"][0] < 0.1
    assert done["probs"][-1] > 0.8
    assert done["change"] > 0


def test_an_attack_lowers_the_probability(address):
    done = answer_of(address, "attack", input={"row": 0}, radius=0.3, steps=20, refine=10)
    before, after = (max(done["stages"][k]["labels"]["digit"]) for k in ("before", "attacked"))
    top = int(np.argmax(done["stages"]["before"]["labels"]["digit"]))
    assert done["stages"]["attacked"]["labels"]["digit"][top] < before
    assert done["changed"] == (done["stages"]["attacked"]["labels"]["digit"][top] < after)
    moved = bytes_of(done["stages"]["attacked"]["x"]).astype(int) - bytes_of(done["stages"]["before"]["x"])
    assert abs(moved).max() <= 0.3 * 255 + 1


def test_missing_fields_of_a_table_are_imputed(address):
    done = answer_of(address, "complete", run=2, input={"values": [3.0, None, 5.0]}, chains=8, steps=5)
    assert done["mean"]["values"][0][::2] == [3.0, 5.0]
    assert done["low"]["values"][0][1] <= done["mean"]["values"][0][1] <= done["high"]["values"][0][1]
    assert sum(done["probs"]["kind"]) == pytest.approx(1, abs=1e-4)
    assert "value" in done["score"]


def test_a_folder_is_watched(address, table_run):
    told = requests.get(f"{address}/api/training/2", timeout=10).json()
    assert told["iterations"] == 6
    assert told["at"][-1] == 6
    assert len(told["curves"]["loss"]) == len(told["at"])
    assert told["checks"][-1]["iteration"] == 6
    assert requests.get(f"{address}/api/training/0", timeout=10).status_code == 400
    for name in ("..%2f..%2frun.json", "run.json", "%2e%2e"):
        assert requests.get(f"{address}/api/training/2/samples/{name}", timeout=10).status_code in (400, 404)


def test_work_holds_up_nobodys_status_and_stops_when_nobody_waits(table_run):
    """Fails where a long request blocks the server, where the queue grows without end, or where a reader who has gone
    keeps a worker."""
    pool = Pool(workers=1, waiting=2)
    with serving([placed("digits-jem")], pool) as address:
        body = {"chains": 64, "steps": 2000}
        streams = []
        for _ in range(3):
            streams.append(requests.post(f"{address}/api/sample", json=body, stream=True, timeout=30))
            time.sleep(0.2)
        refused = requests.post(f"{address}/api/sample", json=body, timeout=10)
        assert refused.status_code == 503
        assert "busy: 2 requests are waiting" in refused.json()["error"]
        began = time.perf_counter()
        assert requests.get(f"{address}/api/status", timeout=10).json()["busy"] == 1
        assert time.perf_counter() - began < 1
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + 10
        while pool.busy and time.monotonic() < deadline:
            time.sleep(0.05)
        assert pool.busy == 0
        assert answer_of(address, "sample", chains=1, steps=2)["n"] == 1


def test_workers_do_not_disturb_each_other(address):
    """Fails where two requests at once share what chains hold in a model."""
    alone = answer_of(address, "sample", chains=4, steps=40, seed=5)["pixels"]
    with ThreadPoolExecutor(4) as threads:
        together = threads.map(lambda _: answer_of(address, "sample", chains=4, steps=40, seed=5)["pixels"], range(8))
        assert set(together) == {alone}


SERVED = """
import signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test's own process may ignore it
import jointenergy as je
from jointenergy.studio import serve

x = torch.randn(60, {columns}, generator=torch.Generator().manual_seed(0))
net = torch.nn.Sequential(torch.nn.Linear({columns}, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
run = je.fit(net, (x, (x[:, 0] > 0).long()), iterations=5, steps=2, sampling_steps=5, verbose=False, seed=0)
serve(run, "digits-jem", port=0, browser=False)
print("served", flush=True)
"""
IN_A_NOTEBOOK = """
import asyncio
async def cell():
{program}
asyncio.new_event_loop().run_until_complete(cell())  # as in a notebook, Ctrl-C interrupts the cell
"""


@pytest.mark.parametrize("notebook", [False, True])
def test_a_run_of_your_own_network_is_served_from_python(notebook):
    """Fails where `serve` needs a recipe, cannot run in a notebook, or does not end with Ctrl-C."""
    program = SERVED.format(columns=2 if notebook else 3)
    if notebook:
        program = IN_A_NOTEBOOK.format(program=program.replace("\n", "\n    "))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1]
            own, digits = requests.get(f"{address}/api/runs", timeout=30).json()["runs"]
            assert (own["kind"], digits["kind"]) == ("points" if notebook else "table", "image")
            assert own["about"] == "a network of your own"
            assert answer_of(address, "sample", chains=3, steps=4, given={"class": "1"})["n"] == 3
            asked = answer_of(address, "ask", input={"row": 0})
            assert sum(asked["labels"]["class"]) == pytest.approx(1.0, abs=1e-5)
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "served\n"
        finally:
            process.kill()


def test_what_cannot_be_served_is_told_the_remedy(tmp_path):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Linear(3, 2)
    run = fit(
        net, (x, (x[:, 0] > 0).long()), iterations=2, steps=1, sampling_steps=1, verbose=False, folder=tmp_path / "own"
    )
    exported = run.export(tmp_path / "own.safetensors")
    for place in (tmp_path / "own", exported):
        with pytest.raises(InputError, match=r"open it with jointenergy.load\(.*show it with jointenergy.studio.serve"):
            placed(place)
    with pytest.raises(InputError, match="serve needs a run"):
        serve()
    with pytest.raises(InputError, match="at most 20 runs, got 21"):
        serve(*[run] * 21)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used .*: choose another one, or 0"):
            serve(run, port=port, browser=False)


def test_the_command_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match="see `jointenergy models`"):
        placed(tmp_path / "nowhere")
    assert load_command("studio").help.startswith("Open runs in the browser")


@pytest.mark.slow
def test_two_hundred_requests_at_once_are_answered_or_refused():
    """Fails where requests hang, end in anything but an answer or a clear refusal, or where memory grows with them."""
    with serving([placed("digits-jem")]) as address:
        answer_of(address, "sample", chains=16, steps=100)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gate = threading.Barrier(200)

        def one(seed):
            gate.wait()
            return events_of(address, "sample", chains=16, steps=100, seed=seed)[-1]

        with ThreadPoolExecutor(200) as threads:
            ends = list(threads.map(one, range(200)))
        answers = [values for name, values in ends if name == "done"]
        refusals = [values for name, values in ends if name == "error"]
        assert len(answers) >= 30
        assert all(r["status"] == 503 and "busy" in r["says"] for r in refusals)
        assert len(answers) + len(refusals) == 200
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024  # MiB, of server and clients
        assert grown < 500
        assert requests.get(f"{address}/api/status", timeout=10).json()["busy"] == 0


def test_the_attack_stays_in_the_box_and_needs_labels():
    run = load("digits-jem")
    x = run.data.x_held[:8]
    found = run.attack(x, radius=0.5, steps=10)
    assert bool((found.x.abs() <= 1).all())
    assert bool(((found.x - x).abs() <= 0.5 + 1e-6).all())
    assert int(found.changed.sum()) > 0
    assert torch.equal(found.changed, (run.predict(found.x) != run.predict(x)).any(1))
    with pytest.raises(InputError, match="above 0"):
        run.attack(x, radius=0)


@pytest.mark.parametrize(
    ("runs", "port", "sentence"),
    [
        ((3,), 0, "takes runs, paths or names"),
        (([],), 0, "takes runs, paths or names"),
        (("digits-jem",), 99_999, "port must be an integer from 0 to 65535, got 99999"),
        (("digits-jem",), "a", "port must be an integer"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(runs, port, sentence):
    with pytest.raises(InputError, match=sentence):
        serve(*runs, port=port, browser=False)
