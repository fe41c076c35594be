"""The server as OpenAI's own Python client sees it: replies, streams, usage, errors, cancellation."""

import concurrent.futures

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "toy", "messages": HELLO, "max_tokens": 20, **fields})


def stream_text(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_lists_the_model(client):
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_answers_a_chat(client):
    reply = chat(client)
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert reply.model == "toy"
    assert reply.system_fingerprint.startswith("fp_")
    assert reply.choices[0].index == 0
    assert reply.choices[0].message.role == "assistant"
    assert len(reply.choices[0].message.content) > 0
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 20
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 20
    assert chat(client).id != reply.id


def test_a_stream_has_the_bytes_of_the_whole_reply(client):
    whole = chat(client, max_tokens=200)
    chunks = list(chat(client, max_tokens=200, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        whole.choices[0].message.content
    )
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"):
        assert getattr(chunks[-1].usage, name) == getattr(whole.usage, name)  # how many were guessed may differ
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_without_usage_has_none(client):
    chunks = list(chat(client, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_reply_is_a_function_of_the_request(client):
    first = chat(client, max_tokens=100, seed=7)
    assert chat(client, max_tokens=100, seed=7).choices[0].message.content == first.choices[0].message.content
    assert chat(client, max_tokens=100, seed=8).choices[0].message.content != first.choices[0].message.content
    unseeded = chat(client, max_tokens=100)
    assert chat(client, max_tokens=100).choices[0].message.content == unseeded.choices[0].message.content
    assert chat(client, max_tokens=50).choices[0].message.content == (
        unseeded.choices[0].message.content[: len(chat(client, max_tokens=50).choices[0].message.content)]
    )


def test_sampling_fields_have_their_effect(client):
    greedy = chat(client, temperature=0, max_tokens=60).choices[0].message.content
    drawn = chat(client, max_tokens=60).choices[0].message.content
    assert drawn != greedy
    for only_the_best in ({"extra_body": {"top_k": 1}}, {"top_p": 1e-6}, {"extra_body": {"min_p": 1}}):
        assert chat(client, max_tokens=60, **only_the_best).choices[0].message.content == greedy


def test_eight_at_once_answer_as_alone(client):
    questions = [[{"role": "user", "content": "question " * (i + 1)}] for i in range(8)]
    alone = [chat(client, messages=q, max_tokens=60).choices[0].message.content for q in questions]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda q: stream_text(chat(client, messages=q, max_tokens=60, stream=True)), questions))
    assert together == alone
    assert len(set(alone)) == 8


def test_choices_differ_and_repeat(client):
    reply = chat(client, n=3, max_tokens=40)
    texts = [choice.message.content for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == chat(client, max_tokens=40).choices[0].message.content
    assert reply.usage.completion_tokens == 120
    assert reply.usage.prompt_tokens == chat(client).usage.prompt_tokens
    assert [choice.message.content for choice in chat(client, n=3, max_tokens=40).choices] == texts
    streamed = ["", "", ""]
    for chunk in chat(client, n=3, max_tokens=40, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_stop_strings_end_a_reply_before_them(client):
    text = chat(client, max_tokens=60).choices[0].message.content
    stop = text[len(text) // 2 :][:3]
    for value in (stop, [stop], ["never in there", stop]):
        reply = chat(client, max_tokens=60, stop=value)
        assert reply.choices[0].message.content == text[: text.index(stop)]
        assert reply.choices[0].finish_reason == "stop"
    assert stream_text(chat(client, max_tokens=60, stop=stop, stream=True)) == text[: text.index(stop)]


def test_logprobs_are_those_of_the_tokens(client):
    reply = chat(client, max_tokens=10, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert len(content) == 10
    visible = b"".join(bytes(entry.bytes) for entry in content if not entry.token.startswith("<|"))
    assert visible.decode(errors="replace") == reply.choices[0].message.content
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        best = [top.logprob for top in entry.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert entry.logprob <= best[0]
    greedy = chat(client, max_tokens=10, temperature=0, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    assert all(entry.bytes == entry.top_logprobs[0].bytes for entry in greedy)
    streamed = [
        entry
        for chunk in chat(client, max_tokens=10, logprobs=True, top_logprobs=3, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == content
    assert chat(client).choices[0].logprobs is None


def test_text_completions(client):
    reply = client.completions.create(model="toy", prompt="Once", max_tokens=30)
    assert reply.object == "text_completion"
    assert reply.usage.prompt_tokens == 4
    text = reply.choices[0].text
    assert client.completions.create(model="toy", prompt=list(b"Once"), max_tokens=30).choices[0].text == text
    assert client.completions.create(model="toy", prompt="Once", max_tokens=30, echo=True).choices[0].text == "Once" + text
    streamed = client.completions.create(model="toy", prompt="Once", max_tokens=30, stream=True, echo=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Once" + text
    assert client.completions.create(model="toy", prompt="Once").usage.completion_tokens == 16


def test_several_prompts_have_choices_in_order(client):
    alone = [
        client.completions.create(model="toy", prompt=prompt, max_tokens=20, n=2).choices for prompt in ("one", "three")
    ]
    both = client.completions.create(model="toy", prompt=["one", "three"], max_tokens=20, n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices] == [choice.text for choices in alone for choice in choices]
    assert both.usage.prompt_tokens == len("one") + len("three")
    ids = client.completions.create(model="toy", prompt=[list(b"one"), list(b"three")], max_tokens=20, n=2)
    assert [choice.text for choice in ids.choices] == [choice.text for choice in both.choices]


def test_completion_logprobs(client):
    choice = client.completions.create(model="toy", prompt="Once", max_tokens=8, logprobs=2).choices[0]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == 8
    assert choice.logprobs.text_offset[0] == 0
    assert all(1 <= len(top) <= 2 for top in choice.logprobs.top_logprobs)


def test_content_may_come_in_parts(client):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    joined = chat(client, messages=[{"role": "user", "content": "Hel\nlo"}])
    assert chat(client, messages=[{"role": "user", "content": parts}]).choices == joined.choices


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e30}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 100000}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"content": "no role"}]}, "messages[0].role"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"extra_body": {"date": "yesterday"}}, "date"),
        ({"extra_body": {"chat_template_kwargs": []}}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_value_is_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, **fields)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"
    assert param.split("[")[0].split(".")[0] in error.value.message


def test_neutral_values_of_unsupported_fields_are_accepted(client):
    plain = chat(client)
    reply = chat(
        client,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        tool_choice="auto",
        user="somebody",
        top_p=1,
        stop=None,
        extra_body={"repetition_penalty": 1.0, "min_p": 0, "top_k": -1},
    )
    assert reply.choices == plain.choices


def test_an_unknown_field_names_the_nearest(client):
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'"):
        chat(client, extra_body={"temprature": 1})


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        chat(client, model="gpt-4o")
    assert error.value.code == "model_not_found"


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError, match="32768") as error:
        client.completions.create(model="toy", prompt="x" * 40000)
    assert "40000" in error.value.message
    assert error.value.code == "context_length_exceeded"


def test_a_reply_ends_where_the_context_does(client):
    reply = client.completions.create(model="toy", prompt="x" * 32700, max_tokens=1000)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens == 32768


def test_token_ids_outside_the_vocabulary_are_refused(client):
    for prompt in ([512], [-1], [[1, 2], [99999]], [[]], []):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model="toy", prompt=prompt)
        assert error.value.param == "prompt"


def test_leaving_a_stream_cancels_it(server, client):
    cancelled = server.metric('tensorfold_replies_total{outcome="cancelled"}')
    stream = chat(client, max_tokens=30000, stream=True)
    for _ in range(3):
        next(stream)
    assert server.metric("tensorfold_sequences_running") >= 1
    stream.close()
    server.wait_for_metric('tensorfold_replies_total{outcome="cancelled"}', lambda value: value == cancelled + 1)
    server.wait_for_metric("tensorfold_sequences_running", lambda value: value == 0)
    assert server.metric("tensorfold_kv_pages_used") == 0


def test_leaving_before_a_whole_reply_cancels_it(server, client):
    cancelled = server.metric('tensorfold_replies_total{outcome="cancelled"}')
    with pytest.raises(openai.APITimeoutError):
        chat(client, max_tokens=30000, timeout=0.3)
    server.wait_for_metric('tensorfold_replies_total{outcome="cancelled"}', lambda value: value == cancelled + 1)


def test_a_cancelled_request_asked_again_has_the_same_bytes(client):
    whole = chat(client, max_tokens=300).choices[0].message.content
    stream = chat(client, max_tokens=300, stream=True)
    next(stream)
    stream.close()
    assert chat(client, max_tokens=300).choices[0].message.content == whole


def test_the_async_client(server):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(
                *(client.chat.completions.create(model="toy", messages=HELLO, max_tokens=20, seed=i) for i in range(16))
            )

    replies = asyncio.run(ask())
    assert len({reply.choices[0].message.content for reply in replies}) == 16


def test_a_reply_ends_at_the_end_token_unless_told_to_go_on(ending_model, start_server):
    client = openai.OpenAI(base_url=start_server(ending_model).url, api_key="none", max_retries=0)
    fields = {"max_tokens": 20000, "logprobs": True}
    reply = chat(client, **fields)
    assert reply.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in reply.choices[0].message.content
    # The end token is counted, and is no part of the reply.
    assert len(reply.choices[0].logprobs.content) == reply.usage.completion_tokens - 1
    longer = chat(client, max_tokens=reply.usage.completion_tokens + 50, extra_body={"ignore_eos": True})
    assert longer.usage.completion_tokens == reply.usage.completion_tokens + 50
    assert longer.choices[0].finish_reason == "length"
    assert longer.choices[0].message.content.startswith(reply.choices[0].message.content)


def test_an_api_key_is_asked_for(toy_model, start_server):
    server = start_server(toy_model, "--api-key", "secret")
    with pytest.raises(openai.AuthenticationError):
        chat(openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0))
    assert chat(openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0)).choices
    assert server.get("/health") == '{"status":"ok"}'
