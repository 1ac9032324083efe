"""Texts of tokens by the tokenizer of a model, compared with what the `tokenizers` package says."""

import json

import pytest
import requests
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import otlp
from conftest import run
from test_tokens import floats, ints, read, send, tokens

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12:30, isn't it?\n\n\tdef f(x):\n        return x ** 2\n",
    "Grüße aus Zürich, naïve café, Ελληνικά, русский текст, 日本語のテキスト, 한국어, العربية, हिन्दी",
    "😀👩‍👩‍👧‍👦🇨🇭 emoji, ∑∫√ maths, \u200b\ufeff odd spaces\u00a0here",
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<\uff5cend\uff5c>"]


def trained(model, trainer, pre_tokenizer, decoder, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def byte_level():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(models.BPE(), trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<pad>"]),
                   pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def sentencepiece():
    """As Llama 2 and Gemma have it: bytes that are in no token are tokens of their own."""
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    few = trainers.BpeTrainer(vocab_size=350, special_tokens=["<unk>", *bytes_], limit_alphabet=40)
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True), few, pre_tokenizers.Split("\n\n\n\n", "isolated"), decoder, normalizer)


def unigram():
    return trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"]), pre_tokenizers.Metaspace(), decoders.Metaspace())


def word_piece():
    return trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"]), pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=False))


def texts_in_sql(data, file):
    answer = run("sql", "select texts from tokens where sample_id = '7'", "--format", "json", "--data", data, "--tokenizer", file).stdout
    return json.loads(answer)[0]["texts"]


@pytest.mark.parametrize("make", [byte_level, sentencepiece, unigram, word_piece])
def test_texts_are_what_the_tokenizers_package_decodes(serve, tmp_path, make):
    tokenizer = make()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    text = "".join(TEXTS) + "".join(SPECIAL) + TEXTS[2]
    ids = tokenizer.encode(text).ids
    assert len(ids) > 50
    server = serve(tmp_path / "data", "--tokenizer", file)
    send(server, tokens({"ids": ints(*ids)}))
    (row,) = read(server, sample="7")
    assert len(row["texts"]) == len(ids)
    # A decoder treats the first token in its own way; ours follow a prompt, so one is put before both.
    before = tokenizer.encode("dog").ids
    whole = tokenizer.decode(before + ids, skip_special_tokens=False)
    assert "".join(row["texts"]) == whole.removeprefix(tokenizer.decode(before, skip_special_tokens=False))
    if make is byte_level:
        assert "".join(row["texts"]) == text
    assert (row["ids"], row["logprobs"]) == (ids, None)
    server.stop()
    assert texts_in_sql(tmp_path / "data", tmp_path) == row["texts"], "the folder of the file does as well"


def test_parts_of_characters(serve, tmp_path):
    tokenizer = byte_level()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    server = serve(tmp_path / "data", "--tokenizer", tmp_path / "model")
    byte = {token: tokenizer.token_to_id(token) for token in tokenizer.get_vocab()}
    # U+1F600 byte by byte, then its first two bytes alone, then an id that nobody knows.
    spelt = [byte[c] for c in "ðŁĺĢ"]
    send(server, tokens({"ids": ints(*spelt, *spelt[:2], byte["a"], 151_999, -1)}))
    (row,) = read(server, sample="7")
    assert row["texts"] == ["😀", "", "", "", "\\xF0", "\\x9F", "a", "<151999>", "<-1>"]


def test_texts_of_the_sender_and_other_runs(serve, tmp_path):
    tokenizer = byte_level()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    id_a = tokenizer.token_to_id("a")
    server = serve(tmp_path / "data", "--tokenizer", f"gr*={file}")
    send(server, tokens({"ids": ints(id_a)}), tokens({"ids": ints(id_a), "texts": json.dumps(["sent"])}, rl__sample__id="8"))
    body = otlp.records("other", tokens({"ids": ints(id_a)})).SerializeToString()
    requests.post(server.http + "/v1/logs", data=body, headers={"content-type": "application/x-protobuf"}, timeout=30).raise_for_status()
    found = server.sql("select run_id, sample_id, texts from tokens order by 1, 2")
    assert found == [["grpo", "7", ["a"]], ["grpo", "8", ["sent"]], ["other", "7", None]]
    # A trainer's half alone has texts, too.
    send(server, tokens({"ids": ints(id_a), "trainer_logprobs": floats(-0.5)}, rl__sample__id="9"))
    assert server.sql("select texts from tokens where sample_id = '9'") == [[["a"]]]


def test_the_worst_tokens_have_texts(serve, tmp_path):
    tokenizer = byte_level()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    ids = tokenizer.encode("The answer is 42").ids
    here, there = [-0.5] * len(ids), [-0.5] * len(ids)
    there[-1] = -6.5
    data = tmp_path / "data"
    server = serve(data)
    send(server, tokens({"ids": ints(*ids), "logprobs": floats(*here), "trainer_logprobs": floats(*there)}))
    assert "text" not in server.get("/api/v1/runs/grpo/mismatch").json()["worst"][0]
    server.stop()
    # What was computed without the tokenizer is computed again with it.
    server = serve(data, "--tokenizer", file)
    worst = server.get("/api/v1/runs/grpo/mismatch").json()["worst"][0]
    last = tokenizer.decode(ids[-1:])
    assert (worst["position"], worst["text"]) == (len(ids) - 1, last)
    server.stop()
    assert last in run("mismatch", "grpo", "--data", data, "--tokenizer", file).stdout


@pytest.mark.parametrize("text, reason", [("", "EOF"), ("{}", "`model`"), ('{"model": {"vocab": {"a": "b"}}}', "invalid type"),
                                          ('{"model": {"vocab": {"a": 0}}, "decoder": {"type": "CTC"}}', "decoder `CTC` is not supported")])
def test_a_bad_file_is_a_usage_error(tmp_path, text, reason):
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    for command in (["serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:0"], ["sql", "select 1", "--data", tmp_path / "data"]):
        failed = run(*command, "--tokenizer", file, check=False)
        assert failed.returncode == 2 and reason in failed.stderr and "tokenizer.json" in failed.stderr, failed.stderr


def test_other_mistakes(tmp_path):
    missing = run("sql", "select 1", "--data", tmp_path, "--tokenizer", tmp_path / "none.json", check=False)
    assert missing.returncode == 2 and "cannot read" in missing.stderr
    empty = run("sql", "select 1", "--data", tmp_path, "--tokenizer", tmp_path, check=False)
    assert empty.returncode == 2 and "save_pretrained" in empty.stderr
    server = run("sql", "select 1", "--server", "http://127.0.0.1:1", "--tokenizer", tmp_path, check=False)
    assert server.returncode == 2 and "rollscope serve" in server.stderr


def test_the_configuration_names_tokenizers(serve, tmp_path):
    tokenizer = byte_level()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = tmp_path / "rollscope.toml"
    config.write_text(f'[[tokenizers]]\nrun = "other"\nfile = "{tmp_path}"\n\n[[tokenizers]]\nrun = "grpo"\nfile = "{tmp_path}"\n')
    server = serve(tmp_path / "data", "--config", config)
    send(server, tokens({"ids": ints(tokenizer.token_to_id("a"))}))
    assert read(server, sample="7")[0]["texts"] == ["a"]
    printed = run("serve", "--config", config, "--print-config").stdout
    assert printed.count("[[tokenizers]]") == 2
