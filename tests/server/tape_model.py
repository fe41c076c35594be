"""A checkpoint that replies with a given text: each token decides the next one, through one-hot embeddings and layers of
zeros, and every piece of the text is a token of its own. Real templates and the whole program around it can so be tested
with the replies of models that are not there."""

import json
import pathlib
import struct

import numpy as np

TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "../shared/data/chat-templates"

HIDDEN = 512  # most tokens that can decide their next one
PIECE_BYTES = 3  # of most tokens; characters are cut where it falls


def byte_character(byte):
    """The character for a byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in plain else 256 + sum(1 for b in range(byte) if b not in plain))


def spelled(text):
    return "".join(byte_character(byte) for byte in text)


def pieces_of(reply, markers, taken):
    """The reply as distinct strings of bytes, none of them `taken`: markers whole the first time they come, unless what is
    left before one has no distinct string of its own."""
    pieces, rest = [taken], reply.encode()
    unused = {marker.encode() for marker in markers}
    while rest:
        found = next((marker for marker in unused if rest.startswith(marker)), None)
        if found is None:
            next_marker = min((marker for marker in unused if marker in rest), key=rest.find, default=None)
            limit = len(rest) if next_marker is None else rest.find(next_marker)
            size = min(PIECE_BYTES, limit)
            while rest[:size] in pieces and size < limit:
                size += 1
            if rest[:size] in pieces:
                assert next_marker is not None, f"no distinct token for {rest!r}"
                unused.remove(next_marker)
                continue
            found = rest[:size]
        unused.discard(found)
        pieces.append(found)
        rest = rest[len(found) :]
    return pieces[1:]


def write_tensors(path, tensors):
    header, data, offset = {}, [], 0
    for name, value in tensors.items():
        words = (np.asarray(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [offset, offset + words.nbytes]}
        offset += words.nbytes
        data.append(words.tobytes())
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def make_tensors(vocab_size, next_token):
    """Column i of the hidden state stands for the i-th token that has a next one."""
    head = np.zeros((vocab_size, HIDDEN))
    embedding = np.zeros((vocab_size, HIDDEN))
    embedding[:, HIDDEN - 1] = 1  # no row may be all zeros
    for column, (token, follower) in enumerate(next_token.items()):
        embedding[token] = np.eye(HIDDEN)[column]
        head[follower, column] = 16
    layer, narrow = "model.layers.0.", np.zeros((64, HIDDEN))
    return {
        "model.embed_tokens.weight": embedding,
        layer + "input_layernorm.weight": np.ones(HIDDEN),
        layer + "self_attn.q_proj.weight": narrow,
        layer + "self_attn.k_proj.weight": narrow,
        layer + "self_attn.v_proj.weight": narrow,
        layer + "self_attn.o_proj.weight": narrow.T,
        layer + "post_attention_layernorm.weight": np.ones(HIDDEN),
        layer + "mlp.gate_proj.weight": narrow,
        layer + "mlp.up_proj.weight": narrow,
        layer + "mlp.down_proj.weight": narrow.T,
        "model.norm.weight": np.ones(HIDDEN),
        "lm_head.weight": head,
    }


def write_tape_model(folder, template, reply, *, tail, special=(), tags=(), end="<|im_end|>"):
    """A model that answers every prompt whose last token is `tail` with `reply` and then `end`. `special` tokens have no
    text, `tags` have; `end` is special, and the model's only end token."""
    added = [*tags, *dict.fromkeys([*special, end])]
    pieces = pieces_of(reply, added, tail.encode())
    vocab = {byte_character(byte): byte for byte in range(256)}
    for piece in [*pieces, *(token.encode() for token in added)]:
        vocab.setdefault(spelled(piece), len(vocab))
    ids = [vocab[spelled(piece)] for piece in [tail.encode(), *pieces, end.encode()]]
    assert len(set(ids)) == len(ids) < HIDDEN, "a token of the reply comes twice, or there are too many"
    vocab_size = (len(vocab) + 63) // 64 * 64

    folder.mkdir(parents=True)
    config = {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": vocab_size,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": vocab[spelled(end.encode())],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "bos_token": end}))
    (folder / "chat_template.jinja").write_text(template)
    flags = {flag: False for flag in ("single_word", "lstrip", "rstrip", "normalized")}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocab[spelled(token.encode())], "content": token, "special": token not in tags, **flags} for token in added
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_tensors(folder / "model.safetensors", make_tensors(vocab_size, dict(zip(ids, ids[1:]))))
    return folder


def published_template(name):
    return (TEMPLATES / f"{name}.jinja").read_text()
