"""Reasoning and calls of tools through the whole program, as OpenAI's own client sees them, with published templates and
models that reply with a given text."""

import json
import os
import pty
import subprocess

import openai
import pytest
from conftest import BINARY, create_toy
from tape_model import published_template, write_tape_model

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
HARMONY = ["<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City."},
                "days": {"type": "integer", "description": "Days."},
                "exact": {"type": "boolean", "description": "Exact."},
            },
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "Weather in Rome?"}]

QWEN_REPLY = """I should look, über 🙂.
</think>

Let me see.

<tool_call>
<function=get_weather>
<parameter=city>
Rome
</parameter>
<parameter=days>
3
</parameter>
<parameter=exact>
True
</parameter>
</function>
</tool_call>"""
HERMES_REPLY = """<think>
Two of them.
</think>

<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}
</tool_call>
<tool_call>
{"name":"get_weather","arguments":{"city":"Oslo"}}
</tool_call>"""
GLM_REPLY = (
    "Look.</think>Wait.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
)
HARMONY_CALL = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome", "days": 2}<|call|>'
)

MODELS = {
    "qwen": dict(template="qwen38_chat_template", reply=QWEN_REPLY, tail="\n", tags=TAGS, special=CHATML),
    "hermes": dict(template="Qwen-Qwen3-0.6B", reply=HERMES_REPLY, tail="\n", tags=TAGS, special=CHATML),
    # Nemotron's tokenizer calls the tags special.
    "nemotron": dict(
        template="NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", reply=QWEN_REPLY, tail="\n", special=[*TAGS, *CHATML]
    ),
    "glm": dict(
        template="GLM-4.7-Flash",
        reply=GLM_REPLY,
        tail="<think>",
        tags=[*TAGS, "<arg_key>", "</arg_key>"],
        special=["<|user|>", "<|assistant|>", "<|endoftext|>"],
        end="<|observation|>",
    ),
    "llama": dict(
        template="meta-llama-Llama-3.2-3B-Instruct",
        reply='{"name": "get_weather", "parameters": {"city": "Rome"}}',
        tail="\n",
        special=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"],
        end="<|eot_id|>",
    ),
    "harmony call": dict(
        template="openai-gpt-oss-120b", reply=HARMONY_CALL, tail="t", special=HARMONY, end="<|return|>"
    ),
    "harmony answer": dict(
        template="openai-gpt-oss-120b",
        reply="<|channel|>final<|message|>It is sunny.",
        tail="t",
        special=HARMONY,
        end="<|return|>",
    ),
}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """The folder of a model of MODELS, by its name."""
    made = {}

    def get(name):
        if name not in made:
            fields = dict(MODELS[name])
            template = published_template(fields.pop("template"))
            reply = fields.pop("reply")
            made[name] = write_tape_model(tmp_path_factory.mktemp("tapes") / name, template, reply, **fields)
        return made[name]

    return get


@pytest.fixture
def client_of(folder_of, start_server):
    def start(name, *flags):
        server = start_server(folder_of(name), *flags)
        return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

    return start


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "", "messages": QUESTION, "tools": [WEATHER], **fields})


def joined(stream):
    """What a stream adds up to: {choice: {"reasoning", "content", "calls", "finish"}}."""
    choices = {}
    for chunk in stream:
        for choice in chunk.choices:
            whole = choices.setdefault(choice.index, {"reasoning": "", "content": "", "calls": [], "finish": None})
            delta = choice.delta
            whole["content"] += delta.content or ""
            whole["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                assert call.index == len(whole["calls"]) and call.type == "function"
                assert call.id.startswith("call_")
                whole["calls"].append((call.function.name, call.function.arguments))
            whole["finish"] = choice.finish_reason or whole["finish"]
    return choices


def parts_of(choice):
    message = choice.message
    return {
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "content": message.content or "",
        "calls": [(call.function.name, call.function.arguments) for call in message.tool_calls or []],
        "finish": choice.finish_reason,
    }


EXPECTED = {
    "qwen": {
        "reasoning": "I should look, über 🙂.",
        "content": "Let me see.",
        "calls": [("get_weather", '{"city": "Rome", "days": 3, "exact": true}')],
        "finish": "tool_calls",
    },
    "hermes": {
        "reasoning": "Two of them.",
        "content": "",
        "calls": [("get_weather", '{"city": "Rome", "days": 1}'), ("get_weather", '{"city":"Oslo"}')],
        "finish": "tool_calls",
    },
    "glm": {
        "reasoning": "Look.",
        "content": "Wait.",
        "calls": [("get_weather", '{"city": "Rome", "days": 2}')],
        "finish": "tool_calls",
    },
    "llama": {
        "reasoning": "",
        "content": "",
        "calls": [("get_weather", '{"city": "Rome"}')],
        "finish": "tool_calls",
    },
    "harmony call": {
        "reasoning": "",
        "content": "",
        "calls": [("get_weather", '{"city": "Rome", "days": 2}')],
        "finish": "tool_calls",
    },
    "harmony answer": {"reasoning": "", "content": "It is sunny.", "calls": [], "finish": "stop"},
}
EXPECTED["nemotron"] = EXPECTED["qwen"]


@pytest.mark.parametrize("name", MODELS)
def test_a_reply_is_taken_apart_whole_and_streamed(client_of, name):
    client = client_of(name)
    reply = chat(client)
    assert parts_of(reply.choices[0]) == EXPECTED[name]
    assert joined(chat(client, stream=True)) == {0: EXPECTED[name]}
    message = reply.choices[0].message
    if EXPECTED[name]["calls"] and not EXPECTED[name]["content"]:
        assert message.content is None
    if not EXPECTED[name]["reasoning"]:
        assert "reasoning_content" not in message.model_dump()
    # What the server replied can be sent back, with the results of the calls.
    again = [*QUESTION, message.model_dump()]
    for call in message.tool_calls or []:
        again.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    longer = chat(client, messages=[*again, *([] if message.tool_calls else QUESTION)])
    assert longer.usage.prompt_tokens > reply.usage.prompt_tokens
    assert longer.choices[0].finish_reason == EXPECTED[name]["finish"]


def test_a_preamble_beside_reasoning_and_a_call_can_be_sent_back(client_of):
    """GPT-OSS's template refuses a message with both; they go to the reasoning together."""
    client = client_of("harmony call")
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}

    def size(**fields):
        message = {"role": "assistant", "tool_calls": [call], **fields}
        return chat(client, messages=[*QUESTION, message, result]).usage.prompt_tokens

    assert size(reasoning_content="Hm.", content="Wait.") == size(reasoning_content="Hm.\n\nWait.", content=None)
    assert size(reasoning_content="Hm.", content="") == size(reasoning_content="Hm.")
    # A list of no calls is none.
    plain = [*QUESTION, {"role": "assistant", "content": "Yes.", "tool_calls": []}, *QUESTION]
    assert chat(client, messages=plain).usage.prompt_tokens > chat(client).usage.prompt_tokens


def test_history_reaches_the_template_as_it_expects_it(client_of):
    """The prompt is the one that the messages' own rendering has, byte for byte: one token is one byte or one tag."""
    client = client_of("qwen")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x", "n": 1}'}}
    history = {"role": "assistant", "content": None, "reasoning_content": "Why?", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}

    def size(*messages):
        return chat(client, messages=[*QUESTION, *messages], tools=openai.omit, max_tokens=1).usage.prompt_tokens

    turn = (
        "<|im_start|>assistant\n<think>\nWhy?\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n"
        "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
    )
    prompt = client.completions.create(model="", prompt=turn, max_tokens=1).usage.prompt_tokens
    assert size(history, result) - size() == prompt
    # Arguments without text, as clients send them for functions without parameters.
    empty = {**call, "function": {"name": "f", "arguments": ""}}
    assert size({**history, "tool_calls": [empty]}, result) < size(history, result)


def test_ids_are_distinct(client_of):
    client = client_of("hermes")
    ids = [call.id for _ in range(2) for call in chat(client).choices[0].message.tool_calls]
    assert len(set(ids)) == 4


def test_one_call_at_a_time_ends_the_reply_with_the_first(client_of):
    client = client_of("hermes")
    both = chat(client)
    one = chat(client, parallel_tool_calls=False)
    assert parts_of(one.choices[0])["calls"] == EXPECTED["hermes"]["calls"][:1]
    assert one.choices[0].finish_reason == "tool_calls"
    assert one.usage.completion_tokens < both.usage.completion_tokens
    assert joined(chat(client, parallel_tool_calls=False, stream=True)) == {0: parts_of(one.choices[0])}


def test_a_call_that_is_cut_off_is_content(client_of):
    client = client_of("hermes")
    size = chat(client, parallel_tool_calls=False).usage.completion_tokens
    cut = chat(client, max_tokens=size - 1)
    assert cut.choices[0].finish_reason == "length"
    assert cut.choices[0].message.tool_calls is None
    text = cut.choices[0].message.content
    assert text.startswith('<tool_call>\n{"name"') and "Rome" in text
    assert joined(chat(client, max_tokens=size - 1, stream=True)) == {0: parts_of(cut.choices[0])}
    # One call is whole, the next is not: the reply was cut off, and says so.
    longer = parts_of(chat(client, max_tokens=size + 5).choices[0])
    assert longer["calls"] == EXPECTED["hermes"]["calls"][:1]
    assert longer["content"].startswith("<tool_call>") and longer["finish"] == "length"


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": openai.omit}, {"tools": []}])
def test_without_tools_a_call_is_text(client_of, fields):
    parts = parts_of(chat(client_of("qwen"), **fields).choices[0])
    assert parts["calls"] == [] and parts["finish"] == "stop"
    assert parts["content"] == QWEN_REPLY.split("</think>\n\n")[1]


def test_parsers_can_be_turned_off(client_of):
    parts = parts_of(chat(client_of("qwen", "--reasoning-parser", "none")).choices[0])
    assert parts["content"] == QWEN_REPLY.split("\n\n<tool_call>")[0] and len(parts["calls"]) == 1
    parts = parts_of(chat(client_of("qwen", "--tool-parser", "none")).choices[0])
    assert parts["reasoning"] and parts["calls"] == [] and "<tool_call>" in parts["content"]
    client = client_of("qwen", "--tool-parser", "none", "--reasoning-parser", "none")
    assert parts_of(chat(client).choices[0])["content"] == QWEN_REPLY
    assert joined(chat(client, stream=True))[0]["content"] == QWEN_REPLY


def test_another_parser_can_be_named(client_of):
    parts = parts_of(chat(client_of("qwen", "--tool-parser", "hermes")).choices[0])
    assert parts["calls"] == [] and parts["content"].endswith("</tool_call>")


def test_special_tokens_do_not_leak(client_of):
    for flags in ([], ["--reasoning-parser", "none", "--tool-parser", "none"]):
        content = parts_of(chat(client_of("harmony answer", *flags)).choices[0])["content"]
        assert "<|" not in content and content.endswith("It is sunny.")


def test_stop_strings_are_looked_for_in_the_content_only(client_of):
    client = client_of("qwen")
    assert parts_of(chat(client, stop=["look"]).choices[0]) == EXPECTED["qwen"]
    assert parts_of(chat(client, stop=["Rome", "parameter"]).choices[0]) == EXPECTED["qwen"]
    stopped = {**EXPECTED["qwen"], "content": "Let me ", "calls": [], "finish": "stop"}
    assert parts_of(chat(client, stop=["see"]).choices[0]) == stopped
    assert joined(chat(client, stop=["see"], stream=True)) == {0: stopped}


def test_choices_and_logprobs(client_of):
    client = client_of("hermes")
    reply = chat(client, n=3, logprobs=True)
    assert [parts_of(choice) for choice in reply.choices] == [EXPECTED["hermes"]] * 3
    content = reply.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == HERMES_REPLY
    streamed = [
        entry
        for chunk in chat(client, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == content
    assert joined(chat(client, n=2, stream=True)) == {0: EXPECTED["hermes"], 1: EXPECTED["hermes"]}


def test_thinking_is_switched_by_request_and_by_server(client_of):
    client, off = client_of("qwen"), client_of("qwen", "--thinking", "off")

    def reasons(client, **extra):
        return parts_of(chat(client, extra_body=extra).choices[0])["reasoning"] != ""

    assert reasons(client) and not reasons(off)
    for switch in (
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert not reasons(client, **switch)
    for switch in (
        {"enable_thinking": True},
        {"thinking": {"type": "enabled"}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ):
        assert reasons(off, **switch)
    kwargs = client_of("qwen", "--chat-template-kwargs", '{"enable_thinking": false}')
    assert not reasons(kwargs) and reasons(kwargs, enable_thinking=True)


def test_reasoning_effort_reaches_the_template(client_of):
    client, low = client_of("qwen"), client_of("qwen", "--reasoning-effort", "low")

    def size(client, **fields):
        return chat(client, **fields).usage.prompt_tokens

    assert size(client) > size(client, reasoning_effort="low") > size(client, reasoning_effort="medium")
    assert size(low) == size(client, reasoning_effort="low")
    assert size(low, reasoning_effort="medium") == size(client, reasoning_effort="medium")
    with pytest.raises(openai.BadRequestError, match="Unexpected reasoning effort"):
        size(client, reasoning_effort="high")


@pytest.mark.parametrize(
    "name, fields, part",
    [
        ("qwen", {"tool_choice": "required"}, "cannot make a model call"),
        ("qwen", {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "cannot make a model call"),
        ("qwen", {"tool_choice": "always"}, "tool_choice"),
        ("qwen", {"tools": [{"type": "function"}]}, "'name'"),
        ("qwen", {"tools": {}}, "must be a list"),
        ("qwen", {"extra_body": {"thinking": True}}, "enabled"),
        ("qwen", {"extra_body": {"thinking": {"type": "disabled"}, "enable_thinking": True}}, "differ"),
        ("qwen", {"extra_body": {"enable_thinking": "no"}}, "true or false"),
        ("qwen", {"parallel_tool_calls": 5}, "true or false"),
        ("harmony answer", {"extra_body": {"enable_thinking": False}}, "no enable_thinking"),
        ("hermes", {"reasoning_effort": "low"}, "does not know"),
    ],
)
def test_what_cannot_be_done_is_refused(client_of, name, fields, part):
    with pytest.raises(openai.BadRequestError, match=part):
        chat(client_of(name), **fields)


def test_tools_are_refused_where_the_template_has_no_place_for_them(server):
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="no place for them"):
        chat(client)


def test_a_second_turn_finds_the_reasoning_that_the_client_left_out(folder_of, start_server):
    """The reply of the second turn is that of the first, whose reasoning and calls are not in the history."""
    server = start_server(folder_of("qwen"), "--draft", "lookup")
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    history = QUESTION + [{"role": "assistant", "content": "Let me see."}, {"role": "user", "content": "And now?"}]

    def accepted(messages, **fields):
        reply = chat(client, messages=messages, temperature=0, **fields)
        assert parts_of(reply.choices[0]) == EXPECTED["qwen"]
        return reply.usage.speculative["accepted"]

    alone = accepted(QUESTION)
    tokens = chat(client, messages=history, extra_body={"draft": False}, user="somebody").usage.completion_tokens
    assert accepted(history) > max(tokens / 2, 2 * alone)
    assert server.metric("tensorfold_sessions") == 2 and server.metric("tensorfold_session_tokens") > tokens
    # Another conversation, another user or another key sees nothing of it.
    assert accepted([{"role": "user", "content": "Hello?"}] + history[1:]) < tokens / 2
    assert accepted(history, user="else") < tokens / 2
    assert accepted(history, prompt_cache_key="k") < tokens / 2
    assert accepted(history, prompt_cache_key="k") > tokens / 2
    without = start_server(folder_of("qwen"), "--draft", "lookup", "--session-tokens", "0")
    client = openai.OpenAI(base_url=without.url, api_key="none", max_retries=0)
    accepted(QUESTION)
    assert accepted(history) < tokens / 2 and without.metric("tensorfold_sessions") == 0


@pytest.mark.parametrize("family", ["glm4_moe", "gpt_oss", "nemotron_h", "qwen3", "qwen3_5", "qwen3_next"])
def test_toys_of_families_with_tools_and_thinking_take_them(tmp_path, start_server, family):
    server = start_server(create_toy(tmp_path / "toy", "--family", family, "--layers", "4", "--hidden", "128"))
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

    def ask(enable_thinking=None, **fields):
        extra = {} if enable_thinking is None else {"extra_body": {"enable_thinking": enable_thinking}}
        return chat(client, **{"max_tokens": 20, "tools": openai.NOT_GIVEN, **extra, **fields})

    prompt_tokens = ask().usage.prompt_tokens
    offered = ask(tools=[WEATHER]).usage.prompt_tokens - prompt_tokens  # in tokens of a byte
    assert offered > len(json.dumps(WEATHER))
    assert ask(True).usage.prompt_tokens - prompt_tokens == len("T\n")
    assert ask(False).usage.prompt_tokens - prompt_tokens == len("T\n\nT\n\n")
    for seed in range(16):  # random weights end their thinking, or the reply in the middle of it
        thought = parts_of(ask(True, max_tokens=1000, seed=seed).choices[0])
        assert thought["reasoning"]
        if thought["content"]:
            break
    assert thought["content"], "thinking never ends"
    assert not any(parts_of(ask(False, seed=seed).choices[0])["reasoning"] for seed in range(4))
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    said = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "sunny"}]
    history = ask(tools=[WEATHER], messages=QUESTION + said).usage.prompt_tokens - prompt_tokens - offered
    assert history > len('{"name": "get_weather", "arguments": {"city": "Rome"}}sunny')


def test_toys_of_other_families_say_what_their_templates_lack(tmp_path, start_server):
    server = start_server(create_toy(tmp_path / "toy", "--family", "qwen2"))
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    assert chat(client, max_tokens=1).usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match="no enable_thinking"):
        chat(client, extra_body={"enable_thinking": True})


@pytest.mark.parametrize(
    "name, flags, part",
    [
        ("qwen", ["--reasoning-parser", "harmony"], "<|channel|>"),
        ("harmony answer", ["--tool-parser", "glm"], "harmony"),
        ("harmony answer", ["--thinking", "off"], "no enable_thinking"),
        ("hermes", ["--reasoning-effort", "low"], "does not know"),
        ("hermes", ["--chat-template-kwargs", "[]"], "must be a JSON object"),
        ("hermes", ["--chat-template-kwargs", "{"], "--chat-template-kwargs"),
        ("hermes", ["--tool-parser", "hermess"], "did you mean 'hermes'"),
    ],
)
def test_flags_that_the_model_cannot_follow_end_the_start(folder_of, name, flags, part):
    command = [BINARY, "serve", str(folder_of(name)), "--port", "0", "--quiet", "--log-level", "warning", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 3)
    assert part in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "name, lines",
    [
        ("qwen", ["info: qwen: reasoning parser think, tool parser xml"]),
        ("harmony call", ["info: harmony call: reasoning parser harmony, tool parser harmony"]),
        ("unknown", ["info: unknown: reasoning parser none, tool parser none", "warning: unknown: chat template"]),
    ],
)
def test_the_log_says_how_replies_are_read(folder_of, tmp_path, name, lines):
    if name == "unknown":
        folder = write_tape_model(tmp_path / name, "{{ tools }}{{ messages }}", "x", tail="\n")
    else:
        folder = folder_of(name)
    command = [BINARY, "serve", str(folder), "--port", "0", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.terminate()
        log = process.stderr.read()
    for line in lines:
        assert line in log
    assert ("calls stay text" in log) == (name == "unknown")


def test_run_prints_the_answer_and_shows_reasoning_on_a_terminal_only(folder_of):
    answer = QWEN_REPLY.split("</think>\n\n")[1]
    command = [BINARY, "run", str(folder_of("qwen")), "Hello", "--quiet"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == answer + "\n"
    reply = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True).stdout)
    assert reply["reasoning"] == EXPECTED["qwen"]["reasoning"] and reply["text"] == answer
    dim = f"\x1b[2m{EXPECTED['qwen']['reasoning']}\x1b[0m\n\n"
    assert terminal_output(command) == dim + answer + "\n"
    assert terminal_output([*command, "--thinking", "off"]) == QWEN_REPLY + "\n"


def terminal_output(command, keys=None):
    """Standard output of a command that believes to be at a terminal."""
    main, side = pty.openpty()
    process = subprocess.Popen(command, stdin=side if keys else subprocess.DEVNULL, stdout=side, stderr=subprocess.DEVNULL)
    os.close(side)
    for key in keys or []:
        os.write(main, key.encode())
    output = b""
    try:
        while data := os.read(main, 65536):
            output += data
    except OSError:  # the terminal's other end is closed
        pass
    os.close(main)
    assert process.wait(timeout=60) == 0
    return output.decode().replace("\r\n", "\n")


def test_a_chat_goes_on_after_a_reply_with_reasoning(folder_of):
    command = [BINARY, "run", str(folder_of("hermes")), "--quiet"]
    output = terminal_output(command, ["Hello\n", "And now?\n", "/exit\n"])
    assert output.count("\x1b[2mTwo of them.\x1b[0m\n\n<tool_call>") == 2
    assert "no reply" not in output
