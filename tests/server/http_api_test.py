"""What the server answers to clients that are not OpenAI's: routes, malformed bodies, origins, curl, shutdown."""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from conftest import BINARY, CLEAN

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def error_of(status_and_body):
    status, body = status_and_body
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return status, body["error"]


@pytest.mark.parametrize(
    "body, part",
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b'{"messages": [}', "line 1"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b'{"messages": "Hello"}', "messages"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100000, "JSON"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 1e400}', "n"),
    ],
)
def test_a_malformed_body_is_refused_in_one_sentence(server, body, part):
    status, error = error_of(server.post("/v1/chat/completions", body))
    assert status == 400
    assert part in error["message"]
    assert len(error["message"]) < 300 and "\n" not in error["message"]


def test_unknown_paths_and_methods(server):
    status, error = error_of(server.post("/v1/nonsense", {}))
    assert status == 404 and "/v1/nonsense" in error["message"]
    status, error = error_of(server.post("/v1/models", {}))
    assert status == 405 and "POST" in error["message"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.get("/v1/chat/completions")
    assert refused.value.code == 405
    assert refused.value.headers["Allow"] == "POST"


def test_head_and_root(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("HEAD", "/health")
    reply = connection.getresponse()
    assert reply.status == 200 and reply.read() == b""
    connection.request("GET", "/")
    assert b"/v1/chat/completions" in connection.getresponse().read()


def test_one_connection_serves_many_requests(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    replies = []
    for _ in range(5):
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT))
        replies.append(json.loads(connection.getresponse().read())["choices"])
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}))
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert all(reply == replies[0] for reply in replies)


def test_a_body_beyond_the_limit_is_refused(toy_model, start_server):
    server = start_server(toy_model, "--max-body", "10KB")
    status, error = error_of(server.post("/v1/chat/completions", b"x" * 20000))
    assert status == 413 and "10000" in error["message"]


def test_pages_of_other_origins_may_not_call(toy_model, server, start_server):
    status, error = error_of(server.post("/v1/chat/completions", CHAT, {"Origin": "http://evil.example"}))
    assert status == 403 and error["code"] == "origin_not_allowed"
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.post("/v1/chat/completions", CHAT, own)[0] == 200
    open_server = start_server(toy_model, "--cors-origin", "http://page.example")
    request = urllib.request.Request(
        open_server.root + "/v1/chat/completions", method="OPTIONS", headers={"Origin": "http://page.example"}
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 204
        assert reply.headers["Access-Control-Allow-Origin"] == "http://page.example"
    assert open_server.post("/v1/chat/completions", CHAT, {"Origin": "http://page.example"})[0] == 200
    assert open_server.post("/v1/chat/completions", CHAT, {"Origin": "http://evil.example"})[0] == 403


def test_metrics_are_prometheus_text(server):
    before = server.metric("tensorfold_generated_tokens_total")
    server.post("/v1/chat/completions", CHAT)
    assert server.metric("tensorfold_generated_tokens_total") == before + 8
    for line in server.get("/metrics").splitlines():
        assert line.startswith(("# HELP tensorfold_", "# TYPE tensorfold_", "tensorfold_"))


def test_the_log_has_a_line_for_every_request_that_ends(toy_model, tmp_path):
    log = tmp_path / "log"
    with log.open("w") as stderr:
        command = [BINARY, "serve", str(toy_model), "--port", "0", "--quiet", "--draft", "lookup"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=CLEAN)
    root = process.stdout.readline().split(" at ")[1].strip()

    def post(**fields):
        data = json.dumps({"prompt": "ab " * 20, "max_tokens": 40, **fields}).encode()
        return json.loads(urllib.request.urlopen(root + "/completions", data, timeout=60).read())

    usage = post(temperature=0)["usage"]
    post(prompt="x", max_tokens=1)
    post(prompt="x", draft=False)
    text = post(prompt="x", draft=False)["choices"][0]["text"]
    post(prompt="x", draft=False, stop=[text[20:23]])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    lines = [line.split(" info: ")[1] for line in log.read_text().splitlines() if "info: request " in line]
    drafts = usage["speculative"]
    assert drafts["drafted"] > 0
    counts = "60 prompt tokens, 40 completion tokens"
    assert re.fullmatch(
        rf"request 1: length, {counts}, \d+\.\d{{3}} s, \d+\.\d tokens/s, "
        rf"{drafts['accepted']} of {drafts['drafted']} drafted tokens accepted \(lookup\)",
        lines[0],
    )
    assert re.fullmatch(r"request 2: length, 1 prompt tokens, 1 completion tokens, \d+\.\d{3} s", lines[1])
    assert re.fullmatch(r"request 3: length, 1 prompt tokens, 40 completion tokens, \S+ s, \S+ tokens/s", lines[2])
    assert lines[4].startswith("request 5: stop, 1 prompt tokens, ") and len(lines) == 5


def test_drafts_are_counted_and_change_no_reply(toy_model, start_server):
    server = start_server(toy_model, "--draft", "lookup", "--draft-max", "4")
    repeated = {"prompt": "once upon a time " * 12, "max_tokens": 120, "temperature": 0}
    status, drafted = server.post("/v1/completions", repeated)
    assert status == 200
    counts = drafted["usage"]["speculative"]
    assert counts["drafter"] == "lookup"
    assert counts["drafted"] > 0 and counts["rounds"] > 0
    assert counts["accepted"] <= counts["drafted"] <= 4 * counts["rounds"]
    assert counts["acceptance_rate"] == pytest.approx(counts["accepted"] / counts["drafted"])
    for name, metric in (
        ("rounds", "rounds"),
        ("drafted", "tokens"),
        ("accepted", "accepted_tokens"),
        ("zero_accept_rounds", "zero_accept_rounds"),
        ("passes_avoided", "passes_avoided"),
    ):
        assert server.metric(f"tensorfold_draft_{metric}_total") == counts[name]
    status, serial = server.post("/v1/completions", {**repeated, "draft": False})
    assert serial["choices"] == drafted["choices"]
    assert "speculative" not in serial["usage"]
    assert server.metric("tensorfold_draft_rounds_total") == counts["rounds"]


def test_a_client_that_does_not_read_is_cancelled(toy_model, start_server):
    server = start_server(toy_model)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    # 20 logprobs make each token's event a few kilobytes, so that buffers fill before the reply ends.
    fields = {"max_tokens": 30000, "stream": True, "logprobs": True, "top_logprobs": 20}
    body = json.dumps({**CHAT, **fields}).encode()
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    server.wait_for_metric('tensorfold_replies_total{outcome="cancelled"}', lambda value: value == 1)
    assert server.metric("tensorfold_generated_tokens_total") < 30000
    client.close()


def test_a_shutdown_lets_running_replies_end(toy_model, start_server):
    server = start_server(toy_model, "--drain", "600")
    body = json.dumps({**CHAT, "max_tokens": 400, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", body)
    reply = connection.getresponse()
    server.process.send_signal(signal.SIGTERM)
    assert reply.read().endswith(b"data: [DONE]\n\n")
    connection.close()
    assert server.process.wait(timeout=60) == 0


def test_a_second_signal_cancels_and_the_stream_does_not_look_whole(toy_model, start_server):
    server = start_server(toy_model, "--drain", "600")
    body = json.dumps({**CHAT, "max_tokens": 30000, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/chat/completions", body)
    reply = connection.getresponse()
    reply.readline()
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGTERM)
    events = reply.read().decode().strip().split("\n\n")
    assert events[-1] != "data: [DONE]"
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "cancelled"
    connection.close()
    assert server.process.wait(timeout=60) == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(server):
    arguments = ["curl", "-sN", server.url + "/chat/completions", "-d", json.dumps({**CHAT, "stream": True})]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    events = output.strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    text = "".join(json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events[:-1])
    whole = server.post("/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"]
    assert text == whole


def test_a_date_reaches_the_template(toy_model, tmp_path, start_server):
    folder = tmp_path / "dated"
    shutil.copytree(toy_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ strftime_now('%d %B %Y') }}" + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = start_server(folder, "--date", "2025-01-02")

    def reply(**fields):
        return server.post("/v1/chat/completions", {**CHAT, **fields})[1]["choices"]

    assert reply() == reply(date="2025-01-02") == reply(date="2025-01-02T23:59:59.5+02:00")
    assert reply() != reply(date="2025-02-03")
    with_prefix = [{"role": "user", "content": "Hello"}]
    prompt = "02 January 2025<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    text = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 8})[1]["choices"][0]["text"]
    assert reply(messages=with_prefix)[0]["message"]["content"] == text


def test_the_context_decides_the_angles_of_dynamic_rope(toy_model, tmp_path, start_server):
    """They are those of the served context for every row, whatever its own length."""
    folder = tmp_path / "dynamic"
    shutil.copytree(toy_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    (folder / "config.json").write_text(json.dumps(config))

    def serve(*flags):
        server = start_server(folder, *flags)
        body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
        text = server.post("/v1/completions", body)[1]["choices"][0]["text"]
        return json.loads(server.get("/v1/models"))["data"][0]["max_model_len"], text

    short, long = serve(), serve("--context", "2048")
    assert (short[0], long[0]) == (512, 2048)
    assert serve("--context", "512") == short
    assert long[1] != short[1]


def test_a_template_that_raises_is_the_requests_fault(toy_model, tmp_path, start_server):
    folder = tmp_path / "strict"
    shutil.copytree(toy_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ raise_exception('roles must alternate') }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    status, error = error_of(start_server(folder).post("/v1/chat/completions", CHAT))
    assert status == 400 and "roles must alternate" in error["message"]


def test_a_model_without_a_template_still_completes(toy_model, tmp_path, start_server):
    folder = tmp_path / "plain"
    shutil.copytree(toy_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = start_server(folder)
    status, error = error_of(server.post("/v1/chat/completions", CHAT))
    assert status == 400 and "chat template" in error["message"]
    assert server.post("/v1/completions", {"prompt": "x"})[0] == 200
