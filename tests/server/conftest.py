"""A toy model and a server of it for the tests in this folder. TENSORFOLD_BINARY is the program under test."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest

BINARY = os.environ["TENSORFOLD_BINARY"]
# No config file and no TENSORFOLD_ variable of whoever runs the tests.
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


class Server:
    """`tensorfold serve` as a child process; `url` ends in /v1."""

    def __init__(self, model, *flags):
        command = [BINARY, "serve", str(model), "--port", "0", "--quiet", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=CLEAN)
        line = self.process.stdout.readline()
        assert line.startswith("Serving "), f"the server did not start: {line!r}"
        self.url = line.split(" at ")[1].strip()
        self.root = self.url.removesuffix("/v1")
        self.port = int(self.root.rsplit(":", 1)[1])

    def get(self, path):
        with urllib.request.urlopen(self.root + path, timeout=60) as reply:
            return reply.read().decode()

    def post(self, path, body, headers=None):
        """Status and JSON of a POST, whatever the status."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name):
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + " "):
                return int(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def wait_for_metric(self, name, is_wanted):
        """Polls for up to a minute, which no passing test comes near."""
        deadline = time.monotonic() + 60
        while not is_wanted(self.metric(name)):
            assert time.monotonic() < deadline, f"{name} stayed at {self.metric(name)}"
            time.sleep(0.01)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def create_toy(folder, *flags):
    command = [BINARY, "demo", "create", str(folder), "--quiet", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=CLEAN)
    return folder


@pytest.fixture(scope="session")
def ending_model(tmp_path_factory) -> pathlib.Path:
    """A toy as it is made: its replies end at random."""
    return create_toy(tmp_path_factory.mktemp("models") / "toy", "--layers", "2", "--context", "32768")


@pytest.fixture(scope="session")
def toy_model(ending_model, tmp_path_factory) -> pathlib.Path:
    """Without end-of-sequence tokens, so that replies are as long as asked for. Small enough for hundreds of tokens in a
    blink, and long enough in context to be interrupted."""
    folder = tmp_path_factory.mktemp("endless") / "toy"
    shutil.copytree(ending_model, folder)
    for name, key in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        config = json.loads((folder / name).read_text())
        del config[key]
        (folder / name).write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def server(toy_model):
    running = Server(toy_model)
    yield running
    assert running.stop() == 0


@pytest.fixture
def start_server():
    """Starts servers with flags of their own, and stops them."""
    started = []

    def start(model, *flags):
        started.append(Server(model, *flags))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()
