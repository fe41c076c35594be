"""The program as a person or a script meets it: exit codes, messages, sources of flags, output for programs."""

import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import time

import pytest

BINARY = os.environ["TENSORFOLD_BINARY"]


# An environment of its own, so that no cache or config of the machine matters.
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


def run(*arguments, input="", env=None, cwd=None):
    command = [BINARY, *map(str, arguments)]
    clean = {**CLEAN, **(env or {})}
    return subprocess.run(command, input=input, capture_output=True, text=True, env=clean, cwd=cwd, timeout=300)


def failed(result, code, *parts):
    """A failure is one line on standard error, nothing on standard output, and its exit code."""
    assert result.returncode == code, result
    assert result.stdout == ""
    assert result.stderr.startswith("tensorfold: ")
    for part in parts:
        assert part in result.stderr
    return result


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models") / "toy"
    assert run("demo", "create", folder, "--layers", 2).returncode == 0
    return folder


@pytest.fixture(scope="session")
def endless(tmp_path_factory) -> pathlib.Path:
    """A toy without end-of-sequence tokens: a reply that is to be stopped must not end before, however fast the machine."""
    folder = tmp_path_factory.mktemp("endless") / "toy"
    assert run("demo", "create", folder, "--layers", 2, "--context", 32768).returncode == 0
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        config = json.loads((folder / name).read_text())
        kept = {key: value for key, value in config.items() if key not in ("eos_token_id", "eos_token")}
        assert kept != config
        (folder / name).write_text(json.dumps(kept))
    return folder


# Help and usage.


def test_help_lists_every_command_and_nothing_else():
    text = run("--help").stdout
    assert run().stdout == text
    assert run("-h").stdout == text
    commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  +\S", text.split("\nCommands\n")[1].split("\n\n")[0], re.M)
    assert commands == ["serve", "run", "info", "inspect", "models", "doctor", "demo", "demo create", "eval",
                        "bench decode", "bench prefill", "bench batch", "bench drafts", "bench verify"]  # fmt: skip
    for command in commands:
        help_text = run(*command.split(), "--help")
        assert help_text.returncode == 0
        assert help_text.stdout.startswith(f"Usage: tensorfold {command}")
        assert "--log-level" in help_text.stdout
        assert max(map(len, help_text.stdout.splitlines())) <= 120


def test_help_explains_a_command():
    assert run("help").stdout == run("--help").stdout
    assert run("help", "demo", "create").stdout == run("demo", "create", "--help").stdout
    assert run("demo", "create", "--nonsense", "-h").stdout == run("demo", "create", "--help").stdout


def test_version():
    assert re.fullmatch(r"tensorfold \d+\.\d+\.\d+\n", run("--version").stdout)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["srve"], "unknown command 'srve'; did you mean serve?"),
        (["entirely-wrong"], "unknown command 'entirely-wrong'; 'tensorfold --help' lists all"),
        (["serve", "--thread", "4", "m"], "unknown option --thread; did you mean --threads?"),
        (["serve", "m", "--thread=4"], "unknown option --thread; did you mean --threads?"),
        (["serve", "m", "--no-such-thing-here"], "unknown option --no-such-thing-here\n"),
        (["--wrong"], "unknown option --wrong"),
        (["serve"], "'tensorfold serve' needs MODEL"),
        (["bench"], "'tensorfold bench' needs one of: decode, prefill, batch, drafts, verify"),
        (["info", "a", "b"], "unexpected argument 'b'"),
        (["serve", "m", "--port", "http"], "--port: 'http' is not an integer from 0 to 65535"),
        (["serve", "m", "--port", "65536"], "--port"),
        (["serve", "m", "--kv-memory", "2XB"], "--kv-memory: '2XB' is not a size such as 512MB, 2GB or 1.5GiB"),
        (["serve", "m", "--isa", "avx3"], "did you mean 'avx2'?"),
        (["run", "m", "--draft-max", "65"], "64"),
        (["serve", "m", "--date", "tomorrow"], "'tomorrow' is no date"),
        (["run", "m", "--temperature", "-1", "x"], "--temperature"),
        (["serve", "m", "--port"], "--port needs a value: N"),
        (["serve", "m", "--port", "--quiet"], "--port needs a value: N, but the flag --quiet follows"),
        (["serve", "m", "--port", "1", "--port", "2"], "--port is given twice"),
        (["serve", "m", "--port="], "--port: '' is not an integer"),
        (["serve", "m", "--quiet=perhaps"], "--quiet: 'perhaps' is neither true nor false"),
        (["serve", "m", "--temp", "1"], "unknown option --temp; did you mean --temperature?"),
        (["run", "m", "-threads", "4"], "unknown option -threads; did you mean --threads?"),
        (["run", "m", "-x"], "unknown option -x; write -- before it if it is an argument"),
        (["run", "m", "a", "-x"], "unknown option -x\n"),
        (["run", "m", "--", "--x", "--y"], "unexpected argument '--y'"),
        (["--quiet", "run", "m"], "unknown option --quiet before 'run'"),
        (["hlp"], "unknown command 'hlp'; did you mean help?"),
        (["help", "rnu"], "unknown command 'rnu'; did you mean run?"),
        (["bench", "decod", "m"], "needs one of: decode, prefill, batch, drafts, verify; did you mean decode?"),
        (["demo", "creat", "/tmp/x"], "unexpected argument '/tmp/x'; did you mean tensorfold demo create?"),
        (["eval", "m"], "one of --text FILE and --ids FILE"),
        (["demo", "create", "/tmp/x", "--heads", "3", "--kv-heads", "2"], "--kv-heads 2 does not divide --heads 3"),
        (["demo", "create", "/tmp/x", "--like", "gpt-oss-20b", "--params", "1M"], "--params 1000000 does not go with --like"),
        (["demo", "create", "/tmp/x", "--params", "1M", "--hidden", "64"], "--params 1000000 does not go with --hidden 64"),
        (["demo", "create", "/tmp/x", "--family", "qwen4"], "--family qwen4: no such family (did you mean qwen2?); those known are gemma3_text, glm4_moe"),
        (["demo", "create", "/tmp/x", "--family", "qwen3", "--like", "gpt-oss-20b"], "--family qwen3 does not go with --like gpt-oss-20b"),
        (["demo", "create", "/tmp/x", "--like", "gemma-3-270m", "--experts", "4"], "--experts 4 does not go with --like gemma-3-270m"),
        (["demo", "create", "/tmp/x", "--like", "gpt-oss-20b", "--layers", "2", "--heads", "3"], "these sizes do not go together"),
        (["demo", "create", "/tmp/x", "--experts", "4"], "do not go with --family llama, which has none"),
    ],
)
def test_usage_errors_say_what_was_meant(arguments, message):
    failed(run(*arguments), 2, message)


# Models that are not there, or not right.


def test_a_missing_model_is_exit_code_3(tmp_path):
    failed(run("run", tmp_path / "none", "x"), 3, "none")
    failed(run("info", "org/name"), 3, "org/name")
    failed(run("run", "demo", "x"), 3, "make demo")


def test_an_unsupported_family_is_exit_code_3(toy, tmp_path):
    config = json.loads((toy / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gpt9"}))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).symlink_to(toy / name)
    failed(run("run", tmp_path, "x"), 3, "gpt9", "llama")
    assert json.loads(run("info", tmp_path, "--json").stdout)["supported"] is False


def test_a_damaged_model_is_exit_code_1(toy, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(toy / name)
    (tmp_path / "model.safetensors").write_bytes((toy / "model.safetensors").read_bytes()[:5000])
    failed(run("run", tmp_path, "x"), 1, "model.safetensors")


def test_too_little_memory_is_exit_code_4(toy):
    failed(run("run", toy, "x", "--kv-memory", "1KB"), 4, "KV")
    failed(run("run", toy, "x", "--kv-memory", "100KB", "--context", 1000), 4, "a context of 1000 tokens does not fit", "holds 192 tokens")


def test_little_kv_memory_is_told_at_the_start(toy):
    result = run("run", toy, "x", "--max-tokens", 1, "--quiet", "--kv-memory", "100KB")
    assert result.returncode == 0
    assert "warning: toy: KV memory holds 192 tokens, so no request can be longer; the model was made for 4096" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    for flags in (["--kv-memory", "1GB"], ["--kv-memory", "100KB", "--context", 193], []):
        assert run("run", toy, "x", "--max-tokens", 1, "--quiet", *flags).stderr == ""


def test_a_device_that_is_none_is_exit_code_2(toy):
    failed(run("run", toy, "hi", "--device", "gpu"), 2, "device 'gpu': expected auto, cpu, cuda or cuda:N")


def test_a_device_that_is_not_there_is_exit_code_3(toy):
    failed(run("run", toy, "hi", "--device", "cuda:99"), 3, "cuda:99: ")


def test_an_address_in_use_is_exit_code_5(toy):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed(run("serve", toy, "--port", port), 5, f"127.0.0.1:{port} is in use")


def test_a_full_disk_or_forbidden_folder_leaves_nothing_behind(tmp_path):
    failed(run("demo", "create", "/proc/toy"), 1, "/proc/toy")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    failed(run("demo", "create", tmp_path / "full"), 2, "is there already")
    # A disk that takes no more after a megabyte, in a folder that was not there.
    def limit_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [BINARY, "demo", "create", tmp_path / "new" / "toy", "--params", "5M"]
    result = subprocess.run(command, capture_output=True, text=True, env=CLEAN, restore_signals=False, preexec_fn=limit_files)
    failed(result, 1, "toy was not written", "File too large")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_demo_create_leaves_nothing_behind(tmp_path, number):
    folder = tmp_path / "new" / "toy"
    command = [BINARY, "demo", "create", folder, "--params", "1B"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN)
    deadline = time.monotonic() + 60
    while not list(folder.parent.glob("toy.partial-*/*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.001)
    assert not folder.exists()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and output == ""
    assert errors.endswith("toy was not written: stopped by a signal\n")
    assert list(tmp_path.iterdir()) == []


def test_demo_create_takes_an_empty_folder_and_a_slash_at_the_end(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "link").symlink_to("toy")
    assert run("demo", "create", f"{tmp_path}/link/", "--layers", 1).returncode == 0
    assert run("demo", "create", "below", "--layers", 1, cwd=tmp_path).returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["below", "link", "toy"]
    assert (tmp_path / "link").is_symlink() and (tmp_path / "toy" / "model.safetensors").is_file()


# Sources of flags.


def test_flag_wins_over_environment_wins_over_file(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("port = 70001\n")
    file_only = run("serve", "m", "--config", config)
    failed(file_only, 2, "config file, port", "70001")
    failed(run("serve", "m", "--config", config, env={"TENSORFOLD_PORT": "70002"}), 2, "TENSORFOLD_PORT", "70002")
    failed(run("serve", "m", "--config", config, "--port", "70003", env={"TENSORFOLD_PORT": "70002"}), 2, "--port", "70003")


def test_sections_of_the_file_win_over_its_top(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('threads = 5\n[serve]\nthreads = "many"\n[run]\nmax-tokens = 0\n')
    failed(run("serve", "m", "--config", config), 2, "serve.threads", "'many'")
    failed(run("run", "m", "x", env={"TENSORFOLD_CONFIG": str(config)}), 2, "run.max-tokens")
    failed(run("info", "m", env={"XDG_CONFIG_HOME": str(tmp_path)}), 3)
    (tmp_path / "tensorfold").mkdir()
    config.rename(tmp_path / "tensorfold" / "config.toml")
    failed(run("serve", "m", env={"XDG_CONFIG_HOME": str(tmp_path)}), 2, "serve.threads")


def test_a_wrong_file_is_refused(tmp_path):
    config = tmp_path / "config.toml"
    failed(run("serve", "m", "--config", config), 2, "the config file", "config.toml cannot be read")
    config.write_text("prot = 1\n")
    failed(run("serve", "m", "--config", config), 2, "'prot' is no flag of any command; did you mean port?")
    config.write_text("[srve]\nport = 1\n")
    failed(run("serve", "m", "--config", config), 2, "[srve] is no command; did you mean serve?")
    config.write_text("[serve]\nprompt-tokens = 1\n")
    failed(run("serve", "m", "--config", config), 2, "'prompt-tokens' is no flag of 'tensorfold serve'")


# Commands.


def test_run_answers_a_prompt(toy):
    result = run("run", toy, "Hello", "--max-tokens", 20)
    assert result.returncode == 0
    assert len(result.stdout.strip()) > 0
    assert re.search(r"\[\d+ prompt tokens at \d+/s, 20 tokens at [\d.]+/s\]\n", result.stderr)
    assert run("run", toy, "--max-tokens", 20, input="Hello").stdout == result.stdout
    assert run("run", toy, "Hello", "--max-tokens", 20, "--quiet").stderr == ""
    assert run("run", toy, "Hello", "--max-tokens", 20, "--seed", 5).stdout != result.stdout


def test_a_prompt_may_begin_with_a_dash(toy):
    def prompt_tokens(*arguments):
        result = run("run", toy, "--raw", "--json", "--quiet", "--max-tokens", 1, *arguments)
        assert result.returncode == 0, result
        return json.loads(result.stdout)["prompt_tokens"]

    for prompt in ("-5", "- be brief", "--be brief", "-"):
        assert prompt_tokens(prompt) == len(prompt)
    for prompt in ("-x", "--quiet", "--help", "--"):
        assert prompt_tokens("--", prompt) == len(prompt)
    reply = run("run", "--quiet", "--raw", "--", toy, "Hello")
    assert reply.returncode == 0 and reply.stdout == run("run", toy, "Hello", "--raw", "--quiet").stdout


def test_a_value_may_begin_with_a_dash(toy):
    assert run("run", toy, "x", "--max-tokens", 1, "--seed", "-5", "--system", "- be brief").returncode == 0
    assert run("run", toy, "x", "--max-tokens", 1, "--seed=-5", "--system=--quiet").returncode == 0


def test_run_prints_json_for_programs(toy):
    reply = json.loads(run("run", toy, "Hello", "--max-tokens", 20, "--json", "--quiet").stdout)
    assert reply["finish_reason"] == "length"
    assert reply["completion_tokens"] == 20
    assert reply["text"] + "\n" == run("run", toy, "Hello", "--max-tokens", 20, "--quiet").stdout


def test_run_raw_leaves_the_template_out(toy):
    raw = json.loads(run("run", toy, "Hello", "--max-tokens", 5, "--json", "--raw").stdout)
    assert raw["prompt_tokens"] == 5
    assert json.loads(run("run", toy, "Hello", "--max-tokens", 5, "--json").stdout)["prompt_tokens"] > 5


def test_replies_do_not_depend_on_threads_or_instruction_set(toy):
    expected = run("run", toy, "Hello", "--max-tokens", 40, "--quiet").stdout
    assert run("run", toy, "Hello", "--max-tokens", 40, "--quiet", "--threads", 1).stdout == expected
    assert run("run", toy, "Hello", "--max-tokens", 40, "--quiet", "--threads", 3).stdout == expected
    for check in json.loads(run("doctor", "--json").stdout)["isas"]:
        assert run("run", toy, "Hello", "--max-tokens", 40, "--quiet", "--isa", check["isa"]).stdout == expected


def test_an_empty_prompt_is_a_usage_error(toy):
    failed(run("run", toy, ""), 2, "the prompt is empty")
    failed(run("run", toy), 2, "the prompt is empty")


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BINARY, [BINARY, *map(str, arguments)], CLEAN)
        self.output = ""

    def wait_for(self, text):
        """Everything up to `text`, which must come within a minute."""
        deadline = time.monotonic() + 60
        while text not in self.output:
            assert select.select([self.fd], [], [], deadline - time.monotonic())[0], f"no {text!r} in {self.output!r}"
            self.output += os.read(self.fd, 4096).decode(errors="replace")
        before, self.output = self.output.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_chat_keeps_a_history_and_ctrl_c_stops_the_reply_only(toy):
    chat = Terminal("run", toy, "--max-tokens", "30", "--temperature", "0")
    chat.wait_for("> ")
    chat.type("Hello\n")
    first = chat.wait_for("\n> ")
    assert re.search(r"\[\d+ prompt tokens", first)
    chat.type("Hello\n")
    second = chat.wait_for("\n> ")
    prompts = [int(re.search(r"\[(\d+) prompt tokens", text)[1]) for text in (first, second)]
    assert prompts[1] > 2 * prompts[0], "the second prompt holds the first turn"
    chat.type("/clear\n")
    chat.wait_for("forgotten")
    chat.wait_for("> ")
    chat.type("Hello\n")
    assert int(re.search(r"\[(\d+) prompt tokens", chat.wait_for("\n> "))[1]) == prompts[0]
    chat.type("/nonsense\n")
    chat.wait_for("There is no command /nonsense")
    chat.wait_for("> ")
    chat.type("\x03")
    chat.wait_for("Ctrl-D leaves)")
    chat.wait_for("> ")
    chat.type("/exit\n")
    assert chat.exit_code() == 0


def test_ctrl_c_stops_a_long_reply(endless):
    chat = Terminal("run", endless)
    chat.wait_for("> ")
    chat.type("Hello\n")
    chat.wait_for("Hello\r\n")
    while len(chat.output) < 20:
        chat.output += os.read(chat.fd, 4096).decode(errors="replace")
    chat.type("\x03")
    chat.wait_for("(stopped)")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.exit_code() == 0


def test_serve_stops_on_a_signal_with_exit_code_0(toy):
    command = [BINARY, "serve", toy, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN)
    assert process.stdout.readline().startswith("Serving toy at http://127.0.0.1:")
    process.send_signal(signal.SIGINT)  # at once: who has read the line may rely on an orderly end
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_info_and_inspect(toy):
    info = json.loads(run("info", toy, "--json").stdout)
    assert info["model_type"] == "llama" and info["supported"] and info["num_layers"] == 2
    assert info["has_tokenizer"] and info["has_chat_template"]
    text = run("info", toy).stdout
    assert "llama" in text and "tokenizer, chat template" in text
    tensors = json.loads(run("inspect", toy, "--json").stdout)
    assert sum(tensor["bytes"] for tensor in tensors["tensors"]) == tensors["total_bytes"] == info["checkpoint_bytes"]
    listing = run("inspect", toy).stdout
    assert re.search(r"^ +2  model\.layers\.\*\.self_attn\.q_proj\.weight +BF16 +\[256, 256\]", listing, re.M)
    assert "model.layers.1.self_attn.q_proj.weight" in run("inspect", toy / "model.safetensors", "--all").stdout


def test_info_names_every_packing(tmp_path):
    assert run("demo", "create", tmp_path / "mixed", "--family", "gpt_oss", "--quant", "4bit").returncode == 0
    info = json.loads(run("info", tmp_path / "mixed", "--json").stdout)
    assert info["quantization"] == "affine 4-bit, groups of 64; mxfp4 4-bit, groups of 32"
    assert run("run", tmp_path / "mixed", "x", "--max-tokens", "1").returncode == 0


def test_info_counts_states_and_the_experts_of_a_token(tmp_path):
    folder = tmp_path / "hybrid"
    assert run("demo", "create", folder, "--family", "qwen3_5_moe_text", "--layers", 4, "--quant", "4bit").returncode == 0
    info = json.loads(run("info", folder, "--json").stdout)
    assert info["layers_by_kind"] == {"gated delta with experts": 3, "attention with experts": 1}
    assert info["state_bytes_per_stream"] == 3 * 4 * (3 * 512 + 4 * 64 * 64)
    assert info["kv_bytes_per_token"] == 2 * 1 * 64 * 2
    assert 0 < info["num_active_weights"] < info["num_weights"]
    assert info["weight_bytes_per_token"] < info["checkpoint_bytes"]
    text = run("info", folder).stdout
    assert "3 gated delta with experts, 1 attention with experts" in text and "states" in text


def test_a_draft_head_is_shown_and_drafts(toy):
    folder = pathlib.Path(__file__).parents[1] / "golden/models/glm4_moe/mtp"
    info = json.loads(run("info", folder, "--json").stdout)
    assert 0 < info["num_draft_weights"] < info["num_weights"] and info["num_unused_tensors"] == 0
    assert "draft head" in run("info", folder).stdout and "draft head" not in run("info", toy).stdout
    verified = run("bench", "verify", folder, "--tokens", "16", "--quiet")
    assert verified.returncode == 0
    lines = [line for line in verified.stdout.splitlines() if line.startswith("mtp ")]
    assert len(lines) == 2 and all(line.endswith("equal") for line in lines)
    refused = run("run", toy, "x", "--draft", "mtp")
    assert refused.returncode != 0 and "has no draft head (MTP)" in refused.stderr


def test_a_draft_model_drafts_and_must_have_the_same_tokens(toy, tmp_path):
    verified = run("bench", "verify", toy, "--draft", toy, "--tokens", "16", "--quiet")
    assert verified.returncode == 0
    lines = [line for line in verified.stdout.splitlines() if line.startswith(toy.name)]
    assert len(lines) == 2
    for line in lines:  # it is the model itself: each guess is right
        right, guesses = re.search(r"(\d+) of +(\d+) guesses right  equal$", line).groups()
        assert right == guesses != "0"
    other = tmp_path / "other"
    assert run("demo", "create", other, "--family", "qwen3").returncode == 0
    refused = run("run", toy, "x", "--draft", other)
    assert refused.returncode != 0 and "a draft model needs the same tokenizer" in refused.stderr
    missing = run("run", toy, "x", "--draft", "lokup")
    assert missing.returncode != 0 and "--draft takes auto, off, lookup, mtp or a model" in missing.stderr


def test_info_says_why_a_model_cannot_run(toy, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    for file in toy.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 3}))
    shown = run("info", folder)
    assert shown.returncode == 0
    assert "cannot run" in shown.stdout and "layer 0 q_proj: shape [256, 256], expected [192, 256]" in shown.stdout


def test_output_that_cannot_be_written_is_a_failure(toy):
    for arguments in (["info", toy, "--json"], ["inspect", toy, "--json"], ["--help"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run([BINARY, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE, text=True,
                                    env=CLEAN, timeout=60)
        assert result.returncode == 1 and "No space left" in result.stderr, arguments


def test_logits_replace_no_device(toy, tmp_path):
    (tmp_path / "ids").write_text("1 2 3")
    os.mkfifo(tmp_path / "pipe")
    failed(run("eval", toy, "--ids", tmp_path / "ids", "--logits", tmp_path / "pipe"), 2, "is not a regular file")


def test_a_word_before_the_command_is_not_passed_over(toy):
    failed(run("rnu", "run", toy, "x"), 2, "unknown command 'rnu'; did you mean run?")
    failed(run("foo", "models"), 2, "foo")


def test_models_lists_both_caches(toy, tmp_path):
    (tmp_path / "tensorfold").mkdir()
    (tmp_path / "tensorfold" / "mine").symlink_to(toy)
    repo = tmp_path / "huggingface" / "hub" / "models--org--name"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots" / "abc").symlink_to(toy)
    (tmp_path / "huggingface" / "hub" / "models--org--half").mkdir()
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    models = json.loads(run("models", "--json", env=env).stdout)
    assert "llama" in models["families"]
    assert {model["name"]: model["supported"] for model in models["models"]} == {
        "mine": True,
        "org/name": True,
        "org/half": False,
    }
    assert "org/name" in run("models", env=env).stdout
    for name in ("mine", "org/name"):
        assert run("run", name, "x", "--max-tokens", "1", env=env).returncode == 0


def test_doctor_finds_every_instruction_set_exact():
    result = run("doctor", "--json")
    assert result.returncode == 0
    diagnosis = json.loads(result.stdout)
    assert len(diagnosis["isas"]) > 0
    assert all(check["ok"] and check["num_different"] == 0 and check["num_outputs"] > 1000 for check in diagnosis["isas"])
    assert diagnosis["read_gb_per_s"] > 0


@pytest.mark.parametrize("family", ["gemma3_text", "glm4_moe", "gpt_oss", "llama", "nemotron_h", "qwen2", "qwen3",
                                    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next"])
@pytest.mark.parametrize("quant", ["bf16", "4bit"])
def test_toy_models_of_every_family_run(tmp_path, family, quant):
    folder = tmp_path / "toy"
    flags = ["--family", family, "--quant", quant, "--layers", 4, "--hidden", 128]
    assert run("demo", "create", folder, *flags).returncode == 0
    for seed in range(5):  # random weights draw the end of the reply now and then
        reply = json.loads(
            run("run", folder, "Hello", "--max-tokens", 30, "--seed", seed, "--json", "--quiet").stdout)
        if reply["completion_tokens"] == 30:
            break
    assert reply["completion_tokens"] == 30
    assert len(set(reply["text"].split())) > 3, "a model that repeats itself tests nothing"
    assert run("demo", "create", tmp_path / "again", *flags, "--seed", 0).returncode == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name, family", [("qwen3_5", "qwen3_5_text"), ("qwen3_5_moe", "qwen3_5_moe_text"),
                                          ("Qwen3.6", "qwen3_5_text"), ("gemma3", "gemma3_text"), ("gpt-oss", "gpt_oss")])
def test_families_have_the_names_that_people_know(tmp_path, name, family):
    assert run("demo", "create", tmp_path / "toy", "--family", name, "--layers", 4).stdout.split()[1] == family + ","


def test_sizes_go_before_those_of_the_published_model(tmp_path):
    sizes = {"hidden": 128, "intermediate": 64, "heads": 4, "kv-heads": 2, "head-dim": 32, "vocab": 1000, "experts": 4,
             "context": 2048}  # fmt: skip
    flags = [word for name, value in sizes.items() for word in (f"--{name}", value)]
    folder = tmp_path / "toy"
    assert run("demo", "create", folder, "--like", "GLM-4.5", "--layers", 4, *flags, "--tie").returncode == 0
    config = json.loads((folder / "config.json").read_text())
    keys = ["hidden_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
            "n_routed_experts", "max_position_embeddings"]  # fmt: skip
    assert [config[key] for key in keys] == list(sizes.values())
    assert config["num_experts_per_tok"] == 4 and config["tie_word_embeddings"] and config["first_k_dense_replace"] == 3
    assert run("run", folder, "x", "--max-tokens", 1).returncode == 0


def test_toy_models_have_about_the_size_asked_for(tmp_path):
    assert run("demo", "create", tmp_path / "toy", "--params", "20M", "--quant", "4bit").returncode == 0
    info = json.loads(run("info", tmp_path / "toy", "--json").stdout)
    assert 20e6 * 0.5 < info["checkpoint_bytes"] < 40e6 * 0.6


def test_eval_scores_a_text_and_saves_logits(toy, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 5)
    result = json.loads(run("eval", toy, "--text", text, "--json", "--quiet").stdout)
    assert result["num_tokens"] == len(text.read_text()) and result["num_scored"] == result["num_tokens"] - 1
    assert 10 < result["perplexity"] < 1e6
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(str(byte) for byte in text.read_bytes()))
    logits = tmp_path / "logits.safetensors"
    same = json.loads(run("eval", toy, "--ids", ids, "--logits", logits, "--json", "--quiet").stdout)
    assert same["mean_nll"] == result["mean_nll"]
    shapes = {t["name"]: t["shape"] for t in json.loads(run("inspect", logits, "--json").stdout)["tensors"]}
    assert shapes["logits"] == [result["num_tokens"], 512]
    exact = json.loads(run("eval", toy, "--ids", ids, "--compute", "f32", "--json", "--quiet").stdout)
    assert exact["mean_nll"] != result["mean_nll"] and abs(exact["mean_nll"] / result["mean_nll"] - 1) < 0.02
    ids.write_text("1 2 x")
    failed(run("eval", toy, "--ids", ids), 2, '"x"')
    failed(run("eval", toy, "--text", tmp_path / "none"), 1, "none")


@pytest.mark.parametrize(
    "arguments, key",
    [
        (["decode", "--prompt-tokens", "16,32", "--tokens", "4", "--samples", "2"], "context_tokens"),
        (["prefill", "--prompt-tokens", "16,32", "--samples", "2"], "prompt_tokens"),
        (["batch", "--streams", "1,2", "--tokens", "4", "--samples", "2"], "streams"),
    ],
)
def test_bench_reports_every_case(toy, arguments, key):
    report = json.loads(run("bench", arguments[0], toy, *arguments[1:], "--json", "--quiet").stdout)
    assert len(report["results"]) == 2 and len({result[key] for result in report["results"]}) == 2
    assert all(result["lowest"] <= result["tokens_per_s"] <= result["highest"] for result in report["results"])
    assert report["arithmetic_id"].startswith("cpu/")


def test_bench_drafts_compares_each_workload_with_serial_decoding(endless, tmp_path):
    for name in ("b", "a"):
        workload = {"name": name, "messages": [{"role": "user", "content": name * 40}], "max_tokens": 24}
        (tmp_path / f"{name}.json").write_text(json.dumps(workload))
    (tmp_path / "notes.txt").write_text("not a workload")
    arguments = ["bench", "drafts", endless, "--workloads", tmp_path, "--samples", 2, "--draft", "lookup", "--quiet"]
    report = json.loads(run(*arguments, "--json").stdout)
    assert [result["workload"] for result in report["results"]] == ["a", "b"]
    for result in report["results"]:
        assert result["equal"] and result["tokens"] == 24 and result["num_samples"] == 2
        assert result["speed_up"] > 0 and result["speculative"]["drafter"] == "lookup"
    assert "equal" in run(*arguments).stdout
    failed(run("bench", "drafts", endless, "--workloads", tmp_path / "none", "--quiet"), 2, "none")
    tape = json.loads(run(*arguments, "--tape", "--draft-max", 3, "--json").stdout)
    assert tape["draft"] == "tape"
    for result in tape["results"]:
        counts = result["speculative"]
        assert result["equal"] and result["tokens"] == 24 and counts["accepted"] == counts["drafted"] > 0
    failed(run("bench", "drafts", endless, "--workloads", tmp_path, "--draft", "off"), 2, "--draft off")
    (tmp_path / "c.json").write_text('{"name": "c"}')
    failed(run(*arguments), 1, "c.json", "'messages'")


def test_bench_verify_finds_drafts_of_all_kinds_equal(toy):
    report = json.loads(run("bench", "verify", toy, "--tokens", 40, "--draft-max", 5, "--json", "--quiet").stdout)
    results = report["results"]
    assert {result["temperature"] for result in results} == {0, 1}
    assert all(result["equal"] and result["tokens"] > 40 for result in results)
    for result in results:
        counts = result["speculative"]
        if result["drafter"] == "always wrong":
            assert counts["accepted"] == 0 < counts["drafted"]
        if result["drafter"] == "always right":
            assert counts["accepted"] == counts["drafted"] > 0


def test_drafts_change_no_reply(endless):
    replies = {
        json.loads(run("run", endless, "ab " * 30, "--max-tokens", 60, "--json", "--quiet", *flags).stdout)["text"]
        for flags in (["--draft", "off"], ["--draft", "lookup", "--draft-max", 3], ["--draft", "auto"], [])
    }
    assert len(replies) == 1
