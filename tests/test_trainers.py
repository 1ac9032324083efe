"""Folders that trainers write, imported as a user does. The fixtures are written by the trainers' own code (fixtures/README.md)."""

import gzip
import json
import math
import pickle
import shutil
import signal
import subprocess
import time
import zipfile
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

from conftest import BINARY, FIXTURES, run, sql, wait_until

VERL = FIXTURES / "verl" / "generations" / "math-grpo"
TRL = FIXTURES / "trl" / "grpo-run"
NEMO = FIXTURES / "nemo-rl" / "exp_001"
PRIME = FIXTURES / "prime-rl" / "wordle-run"
AREAL = FIXTURES / "areal" / "gsm8k" / "trial0"
MILES = FIXTURES / "miles"
RLLM = FIXTURES / "rllm" / "math-agent"
TINKER = FIXTURES / "tinker" / "rl-basic"
ATIF = FIXTURES / "atif" / "job-1"
LANGFUSE = FIXTURES / "langfuse" / "agent-traces"


def rows(data, table, columns="*", where="true", order="1"):
    return sql(data, f"select {columns} from {table} where {where} order by {order}")


def counts(data):
    tables = ("runs", "samples", "conversations", "spans", "metrics", "series", "tokens")
    return {table: sql(data, f"select count(*) as n from {table} where {'source is null' if table == 'metrics' else 'true'}")[0]["n"]
            for table in tables}


@pytest.mark.parametrize("folder, framework", [(VERL, "verl"), (TRL, "trl"), (NEMO, "nemo-rl"), (PRIME, "prime-rl"), (AREAL, "areal"), (RLLM, "rllm"),
                                               (TINKER, "tinker-cookbook"), (ATIF, "atif")])
def test_a_folder_becomes_a_run_and_becomes_it_once(tmp_path, folder, framework):
    data = tmp_path / "data"
    said = run("import", folder, "--data", data).stdout
    assert " 0 rejected" in said
    found = rows(data, "runs", "run_id, framework, started_ns, ended_ns")
    assert [(r["run_id"], r["framework"]) for r in found] == [(folder.name, framework)]
    assert 0 < found[0]["started_ns"] <= found[0]["ended_ns"]
    before = counts(data)
    assert before["samples"] > 0
    run("import", folder, "--data", data)
    assert counts(data) == before
    # File by file, and a second copy of the folder: the same run, the same rows.
    shutil.copytree(folder, tmp_path / "copy" / folder.name)
    run("import", tmp_path / "copy" / folder.name, "--data", data)
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size > 0 and p.name != "batch_summary.json"):
        run("import", path, "--data", data)
    assert counts(data) == before
    run("import", folder, "--run", "mine", "--data", data)
    assert {r["run_id"] for r in rows(data, "runs", "run_id")} == {folder.name, "mine"}


def test_verl_rollouts_and_validations(tmp_path):
    data = tmp_path / "data"
    run("import", VERL, "--data", data)
    assert rows(data, "samples", "split, step, count(*) as n, count(distinct group_id) as groups", "true group by 1, 2", "1, 2") == [
        {"split": "eval", "step": 0, "n": 3, "groups": 3},
        {"split": "eval", "step": 2, "n": 3, "groups": 3},
        {"split": "train", "step": 1, "n": 8, "groups": 4},
        {"split": "train", "step": 2, "n": 8, "groups": 4},
        {"split": "train", "step": 3, "n": 8, "groups": 4},
    ]
    written = [json.loads(line) for line in (VERL / "rollout" / "3.jsonl").read_text().splitlines()]
    kept = rows(data, "samples", "reward, label, attr(metadata, 'pred') as pred, attr(metadata, 'request_id') as request",
                "step = 3", "cast(sample_id as int)")
    assert [(k["reward"], json.loads(k["label"]), k["pred"], k["request"]) for k in kept] == [
        (w["score"], w["gts"], w["pred"], w["request_id"]) for w in written]
    talks = rows(data, "conversations", "messages, reward, message_count", "step = 3", '"index"')
    for talk, w in zip(talks, written, strict=True):
        assert json.loads(talk["messages"]) == [{"role": "user", "content": w["input"]}, {"role": "assistant", "content": w["output"]}]
        assert talk["reward"] == w["score"]
    # A reward of NaN is a reward of NaN, and the line is not lost.
    assert sum(r["nan"] for r in rows(data, "samples", "isnan(reward) as nan", "step = 2 and split = 'train'")) == 1
    assert "你好" in run("conversations", "你好", "--data", data).stdout


def test_verl_names_samples_in_newer_versions(tmp_path):
    data = tmp_path / "data"
    folder = FIXTURES / "verl" / "generations" / "agent-v1"
    run("import", folder, "--data", data)
    written = [json.loads(line) for line in (folder / "rollout" / "1.jsonl").read_text().splitlines()]
    kept = rows(data, "samples", "sample_id, group_id", "step = 1")
    assert {(k["sample_id"], k["group_id"]) for k in kept} == {(w["uid"], w["uid"].rsplit("_", 2)[0]) for w in written}


def test_several_runs_in_one_folder_stay_apart(tmp_path):
    data = tmp_path / "data"
    run("import", FIXTURES / "verl" / "generations", "--data", data)
    assert [r["run_id"] for r in rows(data, "runs", "run_id")] == ["agent-v1", "math-grpo"]


def test_rays_timeline(tmp_path):
    data = tmp_path / "data"
    run("import", FIXTURES / "verl" / "ray_timeline.json", "--run", "ray", "--data", data)
    events = json.loads((FIXTURES / "verl" / "ray_timeline.json").read_text())
    spans = rows(data, "spans", "name, start_ns, end_ns - start_ns as took, thread")
    assert len(spans) == sum(e["ph"] == "X" for e in events)
    generate = [s for s in spans if s["name"] == "actor_rollout_generate_sequences"]
    wrote = [e for e in events if e["name"] == "actor_rollout_generate_sequences"]
    assert sorted(s["took"] for s in generate) == pytest.approx(sorted(e["dur"] * 1e3 for e in wrote), abs=1000)
    assert sorted(s["start_ns"] for s in generate) == pytest.approx(sorted(e["ts"] * 1e3 for e in wrote), abs=1000)
    assert len({s["thread"] for s in generate}) == 2, "two workers"


def test_trl_completions(tmp_path):
    data = tmp_path / "data"
    run("import", TRL, "--data", data)
    table = pq.read_table(TRL / "completions" / "completions_00010.parquet").to_pylist()
    kept = rows(data, "samples", "reward, reward_json, group_id, attr(metadata, 'advantage') as advantage, "
                "attr(metadata, 'golden_answer') as answer", "step = 10", "cast(sample_id as int)")
    given = lambda x: 0 if x is None or math.isnan(x) else x
    assert [(k["reward"], float(k["advantage"]), k["answer"]) for k in kept] == [
        (given(w["accuracy_reward"]) + given(w["format_reward"]), w["advantage"], w["golden_answer"]) for w in table]
    assert json.loads(kept[1]["reward_json"]) == {"accuracy_reward": table[1]["accuracy_reward"], "format_reward": 0.5}
    assert len({k["group_id"] for k in kept}) == len({w["prompt"] for w in table})
    talk = json.loads(rows(data, "conversations", "messages", "step = 10", '"index"')[0]["messages"])
    assert [m["content"] for m in talk] == [table[0]["prompt"], table[0]["completion"]]


def test_other_parquet_files_are_not_taken_for_completions(tmp_path):
    file = tmp_path / "completions_1.parquet"
    pq.write_table(pa.table({"a": [1]}), file)
    done = run("import", file, "--data", tmp_path / "data", check=False)
    assert done.returncode == 1 and "completions_1.parquet" in done.stderr and "its columns are a" in done.stderr
    file.write_bytes(b"PAR1" + b"\0" * 100)
    done = run("import", file, "--data", tmp_path / "data", check=False)
    assert done.returncode == 1 and "completions_1.parquet" in done.stderr and "panicked" not in done.stderr


def test_conversations_in_parquet(tmp_path):
    file = tmp_path / "completions" / "completions_00003.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({
        "step": [3], "prompt": [[{"role": "user", "content": "hi", "tool_call_id": None}]],
        "completion": [[{"role": "assistant", "content": "ho"}]], "my_reward": [1.0], "advantage": [0.0]}), file)
    run("import", file, "--data", tmp_path / "data")
    [talk] = rows(tmp_path / "data", "conversations", "run_id, step, messages, reward")
    assert json.loads(talk["messages"]) == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert (talk["run_id"], talk["step"], talk["reward"]) == (tmp_path.name, 3, 1.0)


def test_nemo_rl_tokens_lengths_and_means(tmp_path):
    data = tmp_path / "data"
    run("import", NEMO, "--data", data)
    for line in (NEMO / "train_data_step2.jsonl").read_text().splitlines():
        wrote = {name: value[0] if isinstance(value, list) else value for name, value in json.loads(line).items()}
        length, mask = wrote["input_lengths"], wrote["token_loss_mask"]
        [kept] = rows(data, "samples", "*, attr(metadata, 'advantage') as advantage, attr(metadata, 'log_prob_difference_mean') as apart",
                      f"step = 2 and split = 'train' and sample_id = '{wrote['idx']}'")
        assert (kept["prompt_tokens"], kept["response_tokens"], kept["total_tokens"]) == (mask.index(1), sum(mask), length)
        assert kept["response_length"] == length - mask.index(1)
        assert (kept["reward"], kept["source"], kept["turns"]) == (wrote["rewards"], "guess", 2)
        assert kept["removed"] == (wrote["sample_loss_mask"] == 0)
        assert float(kept["advantage"]) == pytest.approx(wrote["advantages"][0]) and float(kept["apart"]) == pytest.approx(0.01)
        [tokens] = rows(data, "tokens", "*", f"step = 2 and split = 'train' and sample_id = '{wrote['idx']}'")
        after = slice(mask.index(1), length)
        assert (tokens["prompt_tokens"], tokens["ids"]) == (mask.index(1), wrote["token_ids"][after])
        assert tokens["mask"] == [m == 1 for m in mask[after]]
        assert tokens["logprobs"] == pytest.approx(wrote["generation_logprobs"][after], rel=1 / 4096, abs=1e-5)
        assert tokens["trainer_logprobs"] == pytest.approx(wrote["prev_logprobs"][after], rel=1 / 4096, abs=1e-5)
        [talk] = rows(data, "conversations", "messages", f"step = 2 and key = 'rollout' and sample_id = '{wrote['idx']}' and reward = {wrote['rewards']} and message_count = 4")
        assert [m["role"] for m in json.loads(talk["messages"])] == ["user", "assistant", "user", "assistant"]
    assert [s["split"] for s in rows(data, "samples", "split", "split = 'eval'")] == ["eval"] * 2


def test_prime_rl_episodes(tmp_path):
    data = tmp_path / "data"
    run("import", PRIME, "--data", data)
    episodes = {}
    for file in sorted(PRIME.rglob("traces.jsonl")):
        for line in file.read_text().splitlines():
            episode = json.loads(line)
            for trace in episode["traces"]:
                episodes[trace["id"]] = (episode, trace, "effective" in file.parts)
    kept = rows(data, "samples", "*, attr(metadata, 'trained_in_step') as trained, attr(metadata, 'advantage') as advantage", "status != 'failed'")
    assert sorted(k["sample_id"] for k in kept) == sorted(episodes), "all and effective are the same samples"
    for k in kept:
        episode, trace, _ = episodes[k["sample_id"]]
        work = episode["run"]["work"]
        assert (k["step"], k["split"], k["group_id"], k["source"]) == (work["step"], work["type"], episode["group"]["id"], "wordle-easy")
        rewards = trace["rewards"]
        assert k["reward"] == pytest.approx(sum(r["score"] * r["weight"] for r in rewards.values()))
        assert json.loads(k["reward_json"]) == rewards
        assert json.loads(k["label"]) == "slate"
        assert k["turns"] == len(trace["calls"]) and k["tool_calls"] == len(trace["calls"]) - 1
        assert k["status"] == ("truncated" if len(trace["calls"]) == 3 else "completed")
        assert k["total_tokens"] == sum(len(n["token_ids"]) for n in trace["nodes"])
        assert k["response_tokens"] == sum(sum(n["mask"]) for n in trace["nodes"])
        assert k["weight_versions"] == json.dumps([work["policy"]["start"], work["policy"]["end"]], separators=(",", ":"))
        assert k["start_ns"] == pytest.approx(trace["timing"]["start"] * 1e9) and k["end_ns"] == pytest.approx(trace["timing"]["scoring"]["end"] * 1e9)
        [tokens] = rows(data, "tokens", "*", f"sample_id = '{k['sample_id']}'")
        assert tokens["ids"] == [i for n in trace["nodes"] for i in n["token_ids"]][tokens["prompt_tokens"]:]
        assert sum(tokens["mask"]) == k["response_tokens"] and len(tokens["parts"]) == len(trace["calls"])
        if k["split"] == "train":
            assert float(k["advantage"]) == 0.5 and k["removed"] is False
    late = [k for k in kept if k["trained"] not in (None, str(k["step"]))]
    assert [(k["step"], k["trained"]) for k in late] == [(1, "2")], "it was dispatched in step 1 and trained on in step 2"
    failed = rows(data, "samples", "step, attr(metadata, 'errors') as errors", "status = 'failed'")
    assert [f["step"] for f in failed] == [1, 2] and "no capacity" in failed[0]["errors"]
    calls = sum(len(trace["calls"]) for _, trace, _ in episodes.values())
    named = {r["name"]: r["n"] for r in rows(data, "spans", "name, count(*) as n", "true group by 1")}
    assert named == {"generate": calls, **dict.fromkeys(["rollout", "boot", "setup", "agent", "finalize", "scoring"], len(episodes))}
    talk = json.loads(rows(data, "conversations", "messages", "tool_call_count > 0")[0]["messages"])
    assert talk[2]["tool_calls"][0]["function"]["name"] == "guess" and talk[3]["role"] == "tool"
    assert rows(data, "metrics", "step, value", "name = 'reward/mean' and source is null") == [{"step": 1, "value": 0.6}, {"step": 2, "value": 0.7}]


def test_areal_sessions_and_events(tmp_path):
    data = tmp_path / "data"
    run("import", AREAL, "--data", data)
    wrote = [json.loads(line) for line in (AREAL / "session_tracer" / "rollout" / "sessions-r0.jsonl").read_text().splitlines()]
    status = {"accepted": "completed", "rejected": "completed", "failed": "failed", "pending": "pending"}
    kept = rows(data, "samples", "*", order="start_ns")
    assert [(k["status"], k["removed"]) for k in kept] == [
        (status[w["status"]], None if w["status"] == "pending" else w["status"] != "accepted") for w in wrote]
    phases = sum(len(entries) for w in wrote for entries in w["phases"].values())
    assert sql(data, "select count(*) as n from spans where sample_id is not null")[0]["n"] == len(wrote) + phases
    [open_] = rows(data, "spans", "count(*) as n", "state = 'open'")
    assert open_["n"] == 2, "the session that was not finished, and its phase"
    steps = rows(data, "spans", "step, count(*) as n", "name in ('train_step', 'ppo_update') group by 1")
    assert steps == [{"step": 0, "n": 2}, {"step": 1, "n": 2}]


def test_what_is_damaged_is_named_and_the_rest_is_imported(tmp_path):
    folder = tmp_path / "broken" / "rollout"
    folder.mkdir(parents=True)
    good = (VERL / "rollout" / "1.jsonl").read_text().splitlines()
    lines = [good[0], "", '{"input": "x"}', "[1]", good[1][:90] + "\x00", "{" * 100, good[1], '{"input": "a", "output": "\\ud800", "score": -Infinity, "step": 1}']
    (folder / "1.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe{\n" + good[2][:50].encode())
    (folder / "2.jsonl").write_bytes(gzip.compress("\n".join(good).encode())[:-20])
    (folder / "3.jsonl").write_text("")
    (folder / "4.jsonl").write_text('{"other": 1}\n')
    (folder / "5.jsonl").write_text("\n".join(good).replace('"step": 1', '"step": 5'))
    done = run("import", folder.parent, "--data", tmp_path / "data", check=False)
    assert done.returncode == 1 and "2.jsonl" in done.stderr, done.stderr
    assert "left out 2 files of unknown formats" in done.stderr
    assert "6 rejected" in done.stdout
    for named in ("line 3", "line 4", "line 5", "line 6", "line 9", "line 10: the file ends inside it"):
        assert named in done.stdout, named
    kept = rows(tmp_path / "data", "samples", "step, count(*) as n", "step in (1, 5) group by 1")
    assert kept == [{"step": 1, "n": 3}, {"step": 5, "n": 8}]


def test_lists_that_do_not_agree_are_rejected(tmp_path):
    lines = (NEMO / "train_data_step1.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    record["advantages"][0] = record["advantages"][0][:5]
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
    said = run("import", file, "--data", tmp_path / "data").stdout
    assert "1 rejected" in said and "line 1: it has 5 advantages for" in said
    assert len(rows(tmp_path / "data", "samples")) == len(lines) - 1


def test_a_folder_without_known_files_is_told_so(tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("import", tmp_path / "empty", "--data", tmp_path / "data", check=False)
    assert done.returncode == 1 and "no files of a known layout" in done.stderr


def test_view_opens_a_folder(tmp_path):
    shutil.copytree(PRIME, tmp_path / "run")
    said = run("view", tmp_path / "run", "--no-serve", "--out", tmp_path / "out").stdout
    assert "prime-rl episodes" in said and "prime-rl metrics" in said
    [page] = (tmp_path / "out").glob("*.html")
    assert "wordle" in page.read_text() or page.stat().st_size > 10_000


@contextmanager
def watching(data, folder, *flags):
    process = subprocess.Popen([BINARY, "import", "--watch", folder, "--data", data, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("watching")
        yield process
    finally:
        process.kill()
        process.communicate()


def until(process, data, query, wanted):
    """Waits until the store has what is wanted, or the command has ended. Test runs have their own limit of time."""
    while (found := sql(data, query)) != wanted:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    return found


def test_a_folder_is_followed_while_it_grows(tmp_path):
    data, folder = tmp_path / "data", tmp_path / "run"
    source = PRIME / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    file = folder / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl"
    query = "select count(*) as n from samples"
    with watching(data, folder) as process:
        file.parent.mkdir(parents=True)
        # One line and half of the next: half a line is nothing, and no error.
        file.write_bytes(lines[0] + lines[1][:100])
        until(process, data, query, [{"n": 1}])
        with open(file, "ab") as f:
            f.write(lines[1][100:] + lines[2])
        until(process, data, query, [{"n": 3}])
        completions = folder / "completions"
        completions.mkdir()
        shutil.copy(TRL / "completions" / "completions_00002.parquet", completions)
        until(process, data, query, [{"n": 11}])
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=60)
        assert process.returncode == 0, wrong
        assert " 0 rejected" in said and "rejected:" not in said and not wrong
        read = [line for line in said.splitlines() if "prime-rl episodes" in line]
        assert len(read) >= 2, "what was appended is read by itself"
    before = counts(data)
    # Another start reads everything again, which adds what is new and nothing else.
    with open(file, "ab") as f:
        f.write(lines[3])
    with watching(data, folder) as process:
        until(process, data, query, [{"n": 12}])
        # Another file with the same name begins at its beginning.
        file.write_bytes(lines[4])
        until(process, data, "select count(*) as n from samples where status = 'failed'", [{"n": 1}])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    after = counts(data)
    assert after["runs"] == before["runs"] == 1 and after["samples"] == 13
    run("import", folder, "--data", data)
    assert counts(data) == after


@pytest.mark.parametrize("rollout_first", [True, False])
def test_slimes_train_data_joins_the_tokens_of_its_rollout(tmp_path, rollout_first):
    """fixtures/slime/train_data/0.pt is what slime's `train_data_utils` wrote for the samples of small.pt, in two shards."""
    data, dump, train = tmp_path / "data", FIXTURES / "slime" / "small.pt", FIXTURES / "slime" / "train_data" / "0.pt"
    for file in (dump, train) if rollout_first else (train, dump):
        run("import", file, "--run", "r", "--data", data)
    samples = rows(data, "samples", "sample_id, reward, status, response_length")
    assert len(samples) == 8 and samples[0]["reward"] == 1.0 and all(s["response_length"] == 48 for s in samples)
    found = rows(data, "tokens", "sample_id, count, prompt_tokens, ids, mask, logprobs, trainer_logprobs, entropy, advantages")
    assert [f["sample_id"] for f in found] == [s["sample_id"] for s in samples]
    dumped = rows(data, "tokens", "*")
    assert len(dumped) == 8
    for row in found:
        assert row["count"] == 48 and row["prompt_tokens"] == 48 and all(len(row[name]) == 48 for name in list(row)[3:])
        difference = [t - e for t, e in zip(row["trainer_logprobs"], row["logprobs"], strict=True)]
        assert 0.003 < math.sqrt(sum(d * d for d in difference) / 48) < 0.03, "noise of 0.01 was added"
    # Positions 6, 1, 3, 4 of the rollout were the first shard, and 0, 7, 2, 5 the second.
    assert [f["advantages"][0] for f in found] == [0.5, -0.5, -1.5, -1.5, -2.5, -2.5, 0.5, -0.5]
    before = counts(data)
    run("import", train, "--run", "r", "--data", data)
    assert counts(data) == before


def test_a_folder_with_train_data_can_be_viewed(tmp_path):
    said = run("view", MILES, "--no-serve", "--out", tmp_path).stdout
    assert "3 dumps as one run" in said and (tmp_path / "miles.trace_timeline_viewer.html").exists()


def test_miles_writes_dumps_and_a_dashboard(tmp_path):
    """Written by miles' own functions, for two steps of eight samples: fixtures/README.md."""
    data, wrote = tmp_path / "data", lambda stream: [
        json.loads(line) for file in sorted((MILES / "dashboard").glob(f"{stream}*/*.jsonl")) for line in file.read_text().splitlines()]
    assert " 0 rejected" in run("import", MILES, "--data", data).stdout
    assert rows(data, "runs", "run_id, framework") == [{"run_id": "miles", "framework": "miles"}]
    tokens = rows(data, "tokens", "step, sample_id, count, logprobs, trainer_logprobs, entropy, mask", "split = 'train'", "1, sample_id")
    assert len(tokens) == 16 and all(len(t["logprobs"]) == len(t["trainer_logprobs"]) == len(t["entropy"]) == t["count"] for t in tokens)
    removed = {(t["step"], t["sample_id"]) for t in tokens if not any(t["mask"])}
    assert removed == {(0, "3"), (1, "11")}, "the fourth of each step was removed from the loss"
    phases = [(p["name"], p["t0"], p["t1"]) for p in wrote("phases")]
    kept = rows(data, "spans", "name, start_ns, end_ns, thread", "sample_id is null", "start_ns, name")
    assert sorted(phases) == sorted((k["name"], k["start_ns"] / 1e9, k["end_ns"] / 1e9) for k in kept)
    assert {k["thread"] for k in kept} == {"rollout_manager", "train 0", "train 1", "train 2", "train 3"}
    events = wrote("trajectories")
    kept = rows(data, "spans", "name, count(*) as n, sum(case when state = 'closed' then 1 else 0 end) as closed", "sample_id is not null group by 1")
    begun = {name: sum(e["kind"] == f"{kind}_start" for e in events) for name, kind in (("generate", "gen"), ("sample", "attempt"), ("tool", "tool"))}
    assert {k["name"]: (k["n"], k["closed"]) for k in kept} == {name: (n, n) for name, n in begun.items()}
    assert {(m["step"], m["name"]) for m in rows(data, "metrics", "step, name", "source is null")} >= {(0, "perf/step_time"), (1, "perf/step_time")}
    running = [(e["ts"], e["value"]) for e in wrote("engine_series") if e["metric"] == "sglang_num_running_reqs" and e["addr"].endswith(":15000")]
    kept = rows(data, "series", "time_ns, value", "name = 'sglang:num_running_reqs' and target = '10.0.0.1:15000'")
    assert [(k["time_ns"] / 1e9, k["value"]) for k in kept] == running
    assert len(rows(data, "series", "value", "name = 'DCGM_FI_DEV_GPU_UTIL'")) == len(wrote("gpu_util"))
    before = counts(data)
    run("import", MILES, "--data", data)
    assert counts(data) == before


def test_prime_rl_exports_tokens(tmp_path):
    """Written by prime-rl's TokenExporter."""
    data, folder = tmp_path / "data", PRIME / "token_exports"
    assert " 0 rejected" in run("import", PRIME, "--data", data).stdout
    wrote = {(w["step"], f"rank {w['rank']} #{w['export_sequence_idx']}"): w
             for file in folder.glob("*/*.jsonl") for w in map(json.loads, file.read_text().splitlines())}
    kept = rows(data, "tokens", "*", "sample_id like 'rank %'")
    assert {(k["step"], k["sample_id"]) for k in kept} == set(wrote) and len(wrote) == 16
    for k in kept:
        w = wrote[k["step"], k["sample_id"]]
        prompt = w["loss_mask"].index(True)
        assert k["prompt_tokens"] == prompt and k["source"] == "wordle" and k["split"] == "train"
        assert (k["ids"], k["mask"], k["clipped"]) == (w["token_ids"][prompt:], w["loss_mask"][prompt:], w["is_masked"][prompt:])
        for ours, theirs in (("logprobs", "inference_logprobs"), ("trainer_logprobs", "trainer_logprobs"), ("entropy", "entropy"),
                             ("advantages", "advantages"), ("ratios", "importance_ratio")):
            assert k[ours] == pytest.approx(w[theirs][prompt:], rel=1e-3, abs=1e-6)
    assert sum(sum(k["clipped"]) for k in kept) > 0
    samples = rows(data, "samples", "count(*) as n", "sample_id like 'rank %'")
    assert samples == [{"n": 0}], "tokens alone make no sample"


def test_slices_of_context_parallelism_are_left_out_and_reported(tmp_path):
    payload = {"rollout_id": 3, "rank": 1, "cp_rank": 1, "cp_size": 2, "qkv_format": "thd", "rollout_data": {
        "tokens": [[1, 2, 3, 4, 5], [6, 7, 8]], "response_lengths": [3, 2], "total_lengths": [5, 3], "sample_indices": [24, 25],
        "loss_masks": [[1, 1, 0], [1, 1]], "log_probs": [[-0.5], [-0.5, -0.25]]}}
    data, file = tmp_path / "data", tmp_path / "run" / "train_data" / "3_1.pt"
    file.parent.mkdir(parents=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(payload, protocol=2))
        archive.writestr("archive/version", "3\n")
    assert "1 samples have lists that are shorter or longer than their response" in run("import", tmp_path / "run", "--data", data).stdout
    kept = rows(data, "tokens", "run_id, step, sample_id, ids, mask, trainer_logprobs")
    assert [tuple(k.values()) for k in kept] == [("run", 3, "24", [3, 4, 5], [True, True, False], None), ("run", 3, "25", [7, 8], [True, True], [-0.5, -0.25])]


def test_sglang_request_metrics(tmp_path):
    data = tmp_path / "data"
    folder = FIXTURES / "sglang" / "request_metrics"
    said = run("import", folder, "--data", data).stdout
    assert "1 rejected" in said and "line 5: it has no times; SGLang writes them with --enable-metrics" in said
    wrote = [json.loads(line) for line in next(folder.iterdir()).read_text().splitlines()][:-1]
    kept = rows(data, "spans", "request_id, start_ns, end_ns, status, attr(end_attrs, 'cached_tokens') as cached, attr(start_attrs, 'stream') as stream",
                "name = 'request'", "start_ns")
    assert [(k["request_id"], int(k["cached"]), k["status"]) for k in kept] == [
        (w["id"], w["cached_tokens"], "error" if w["finish_reason"]["type"] == "abort" else "unset") for w in wrote]
    assert [k["end_ns"] - k["start_ns"] for k in kept] == pytest.approx([w["e2e_latency"] * 1e9 for w in wrote], abs=1000)
    parts = rows(data, "spans", "name, count(*) as n, min(end_ns - start_ns) as least", "name != 'request' group by 1")
    assert [(p["name"], p["n"]) for p in parts] == [("decode", 4), ("prefill", 4), ("queue", 4)]
    assert parts[2]["least"] == pytest.approx(0.25e9, abs=1000)
    before = counts(data)
    run("import", folder, "--data", data)
    assert counts(data) == before


def test_sglang_crash_dump(tmp_path):
    data = tmp_path / "data"
    folder = FIXTURES / "sglang" / "crash_dump" / "node-7"
    assert " 0 rejected" in run("import", folder, "--data", data).stdout
    kept = rows(data, "samples", "sample_id, status, end_ns - start_ns as took, response_tokens, attr(metadata, 'engine') as engine")
    assert [(k["sample_id"], k["status"], k["response_tokens"], k["engine"]) for k in kept] == [
        ("req-0", "completed", 12, "node-7:30000"), ("req-1", "truncated", 12, "node-7:30000"), ("req-2", "aborted", 0, "node-7:30000"),
        ("req-3", "pending", 7, "node-7:30000"), ("req-4", "pending", None, "node-7:30000"), ("req-5", "pending", 1, "node-7:30000")]
    spans = rows(data, "spans", "request_id, state, status, status_message, attr(start_attrs, 'sampling_params') as params", "true", "request_id")
    assert [(s["request_id"], s["state"]) for s in spans] == [(f"req-{n}", "closed" if n < 3 else "open") for n in range(6)]
    assert (spans[2]["status"], spans[2]["status_message"]) == ("error", "Abort before prefill")
    assert json.loads(spans[0]["params"])["max_new_tokens"] == 256
    talks = {t["sample_id"]: json.loads(t["messages"]) for t in rows(data, "conversations", "sample_id, messages")}
    assert talks["req-3"] == [{"role": "user", "content": "Prove that √2 is irrational."}, {"role": "assistant", "content": "Suppose that √2 = p/q"}]
    assert talks["req-4"] == [{"role": "user", "content": "(5 tokens, sent as ids)"}] and talks["req-5"][1]["content"] == "hi"
    tokens = rows(data, "tokens", "sample_id, ids, logprobs, parts")
    assert [(t["sample_id"], len(t["ids"]), t["logprobs"] is None) for t in tokens] == [
        ("req-0", 12, False), ("req-1", 12, False), ("req-3", 7, False), ("req-5", 1, True)]
    assert [(part["engine"], part["weight_version"]) for part in tokens[0]["parts"]] == [("node-7:30000", "12")]
    before = counts(data)
    run("import", folder, "--data", data)
    assert counts(data) == before
    # The periodic dumps have the same layout. The requests that both have are the same samples.
    run("import", next((FIXTURES / "sglang" / "request_dump").iterdir()), "--run", "node-7", "--data", data)
    assert counts(data)["samples"] == before["samples"]


@pytest.mark.parametrize("content, said", [
    (pickle.dumps({"server_args": None, "requests": 5}), "no list `requests`"),
    (pickle.dumps({"server_args": None, "requests": [(1, 2)]}), "request 1: it is no tuple of a request, its answer and two times"),
    (pickle.dumps({"server_args": None, "requests": [({"rid": "a"}, {}, None, 2.0)]}), "it has no time of creation"),
    (pickle.dumps({"server_args": None, "requests": [({"rid": "a"}, {}, 1.0, 2.0)] * 50})[:-40], "crash_dump_1.pkl"),
])
def test_sglang_crash_dumps_that_are_damaged(tmp_path, content, said):
    dump = tmp_path / "crash_dump_1.pkl"
    dump.write_bytes(content)
    failed = run("import", dump, "--data", tmp_path / "data", check=False)
    assert failed.returncode == 1 and said in failed.stderr, failed.stderr


def test_rllm_episodes(tmp_path):
    data = tmp_path / "data"
    run("import", RLLM, "--data", data)
    kept = rows(data, "samples", "step, split, sample_id, group_id, reward, status, label, turns", "true", "split, step, sample_id")
    assert [(k["split"], k["step"], k["sample_id"]) for k in kept] == [("eval", 2, "task9:0")] + [
        ("train", step, f"task{task}:{n}") for step in (1, 2) for task in (1, 2) for n in (0, 1)]
    assert (kept[1]["group_id"], kept[1]["reward"], kept[1]["status"], kept[1]["label"], kept[1]["turns"]) == ("task1", 1.0, "completed", '"2"', 2)
    assert (kept[2]["reward"], kept[2]["status"]) == (0.0, "truncated")
    talk = json.loads(rows(data, "conversations", "messages", "step = 1 and sample_id = 'task1:0'")[0]["messages"])
    assert [m["role"] for m in talk] == ["user", "assistant", "tool", "assistant"], "a step repeats what was said before"


def test_rllm_evaluations_have_tokens(tmp_path):
    data = tmp_path / "data"
    folder = FIXTURES / "rllm" / "gsm8k_qwen_20260921"
    run("import", folder, "--data", data)
    assert [(k["sample_id"], k["source"], k["reward"]) for k in rows(data, "samples", "sample_id, source, reward")] == [
        ("task4:0", None, 1.0), ("task5:0/judge", "judge", 0.5), ("task5:0/solver", "solver", 1.0)]
    (kept,) = rows(data, "tokens", "ids, mask, prompt_tokens, parts", "sample_id = 'task4:0'")
    # The second prompt has 13 in the place of 12, which the engine had produced.
    assert (kept["ids"], kept["mask"], kept["prompt_tokens"]) == ([10, 11, 13, 20, 30, 31], [True, True, False, False, True, True], 3)
    assert [(p["start"], p["turn"], p["weight_version"], p["differs_at"]) for p in kept["parts"]] == [(0, 0, "4", None), (4, 1, "5", 2)]


def test_tinker_rollouts_and_metrics(tmp_path):
    data = tmp_path / "data"
    run("import", TINKER, "--data", data)
    wrote = [json.loads(line) for line in (TINKER / "iteration_000001" / "train_rollout_summaries.jsonl").read_text().splitlines()]
    kept = rows(data, "samples", "sample_id, group_id, reward, source, turns, response_tokens, weight_versions", "step = 1")
    assert [(k["sample_id"], k["group_id"], k["reward"], k["source"], k["turns"], k["response_tokens"], k["weight_versions"]) for k in kept] == [
        (f"{w['group_idx']}-{w['traj_idx']}", str(w["group_idx"]), w["total_reward"], "arithmetic", len(w["steps"]), sum(s["ac_len"] for s in w["steps"]), "[1]") for w in wrote]
    assert [k["sample_id"] for k in rows(data, "samples", "sample_id", "split = 'eval'")] == ["eval/gsm8k/0-0", "eval/gsm8k/0-1"]
    reward = rows(data, "metrics", "step, value", "name = 'env/all/reward/total'", "step")
    assert [(r["step"], r["value"]) for r in reward] == [(0, 0.5), (1, 0.6), (2, 0.7)]
    assert rows(data, "metrics", "isnan(value) as nan", "name = 'kl_sample_train_v1' and step = 1") == [{"nan": True}]
    # Read again after it has grown: no point is there twice.
    (tmp_path / "rl-basic").mkdir()
    (tmp_path / "rl-basic" / "metrics.jsonl").write_text((TINKER / "metrics.jsonl").read_text() + '{"step": 3, "progress/batch": 3, "env/all/reward/total": 0.8}\n')
    run("import", tmp_path / "rl-basic", "--data", data)
    assert len(rows(data, "metrics", "step", "name = 'env/all/reward/total'")) == 4


def test_atif_trajectories(tmp_path):
    data = tmp_path / "data"
    run("import", ATIF, "--data", data)
    kept = rows(data, "samples", "sample_id, group_id, source, turns, tool_calls, response_tokens, end_ns - start_ns as took, attr(metadata, 'session_id') as session")
    assert [tuple(k.values()) for k in kept] == [
        ("count-lines__Zz9q", "count-lines", "terminus-2", 2, 1, 4, 9_000_000_000, "sess-1"),
        ("count-lines__Zz9q/helper-1", "count-lines", "helper", 1, 0, None, None, None),
        ("count-lines__aB3x", "count-lines", "terminus-2", 2, 1, 4, 9_000_000_000, "sess-0")]
    talk = json.loads(rows(data, "conversations", "messages", "sample_id = 'count-lines__aB3x'")[0]["messages"])
    assert [m["role"] for m in talk] == ["system", "user", "assistant", "tool", "assistant"]
    assert talk[1]["content"].endswith("Größe zählt.") and talk[2]["reasoning_content"] == "wc does it"
    assert talk[2]["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"cmd":"wc -l a.txt"}'} and talk[3]["tool_call_id"] == "c1"
    (tokens,) = rows(data, "tokens", "ids, mask, parts", "sample_id = 'count-lines__aB3x'")
    assert (tokens["ids"], tokens["mask"]) == ([10, 11, 12, 20, 21, 30], [True, True, True, False, False, True])
    # Any folder will do, and then the session names the sample.
    (tmp_path / "mine").mkdir()
    shutil.copy(ATIF / "count-lines__aB3x" / "agent" / "trajectory.json", tmp_path / "mine" / "trajectory.json")
    run("import", tmp_path / "mine", "--data", data)
    assert [k["sample_id"] for k in rows(data, "samples", "sample_id", "run_id = 'mine'")] == ["sess-0"]


@pytest.mark.parametrize("name", ["observations.json", "observations.jsonl", "observations.csv"])
def test_langfuse_observations(tmp_path, name):
    data = tmp_path / "data"
    assert " 0 rejected" in run("import", LANGFUSE / name, "--data", data).stdout
    spans = rows(data, "spans", "name, hex(trace_id) as trace, end_ns - start_ns as took, state, attr(start_attrs, 'langfuse.type') as type, "
                 "attr(start_attrs, 'gen_ai.usage.input_tokens') as tokens")
    assert [(s["name"], s["trace"], s["took"], s["state"], s["type"], int(s["tokens"])) for s in spans] == [
        ("call-0", "4f3c2b1a0000000000000000000000b0", 2_500_000_000, "closed", "GENERATION", 7),
        ("call-1", "4f3c2b1a0000000000000000000000b1", 2_500_000_000, "closed", "SPAN", 7),
        ("call-2", "4f3c2b1a0000000000000000000000b2", None, "open", "GENERATION", 7)]
    (talk,) = rows(data, "conversations", "messages, attr(metadata, 'model') as model")
    assert json.loads(talk["messages"]) == [{"role": "user", "content": 'Say "0", then stop.\nZürich'}, {"role": "assistant", "content": "0."}]
    assert talk["model"] == "qwen3"
    before = counts(data)
    for other in ("observations.json", "observations.jsonl", "observations.csv"):
        run("import", LANGFUSE / other, "--data", data)
    assert counts(data) == before, "the same observations, whatever they are written as"


def test_langfuse_trace(tmp_path):
    data = tmp_path / "data"
    run("import", LANGFUSE / "trace.json", "--data", data)
    spans = rows(data, "spans", "name, phase, status, status_message, parent_span_id is null as root", "true", "start_ns, name")
    assert [(s["name"], s["phase"], s["status"], s["root"]) for s in spans] == [
        ("agent", None, "unset", True), ("weather-agent", None, "unset", True), ("plan", "generate", "unset", False), ("get_weather", "tool", "error", False)]
    assert spans[3]["status_message"] == "timeout"
    (talk,) = rows(data, "conversations", "messages")
    assert [m["content"] for m in json.loads(talk["messages"])] == ["Is it raining in Zürich?", "I look it up."]
    # What the API lists.
    (tmp_path / "list").mkdir()
    listed = tmp_path / "list" / "traces.json"
    listed.write_text(json.dumps({"data": [json.loads((LANGFUSE / "trace.json").read_text())], "meta": {"page": 1}}))
    run("import", listed, "--run", "agent-traces", "--data", data)
    assert counts(data)["spans"] == 4


@pytest.mark.parametrize("name, text, said", [
    ("trajectory.json", '{"schema_version": "ATIF-v1.6", "steps": [', "cut off?"),
    ("trajectory.json", '{"schema_version": "ATIF-v1.6", "session_id": "s"}', 'no list "steps"'),
    ("trajectory.json", '{"schema_version": "ATIF-v1.6", "session_id": "s", "steps": [{"step_id": 1, "source": "agent", "message": "", '
     '"metrics": {"completion_token_ids": [1, 2], "logprobs": [-0.5]}}]}', "step 1: it has 1 log probabilities for 2 tokens"),
    ("episode_1.json", '{"training_step": 1, "episode_id": "a", "task": {}}', 'no list "trajectories"'),
    ("episode_1.json", b'{"training_step": 1, "episode_id": "a", "task": "\xff\xfe', "episode_1.json"),
    ("x.csv", "id,traceId,startTime,type\na,b,\"2026", "line 2: a quoted field does not end"),
    ("x.jsonl", '{"id": "a", "traceId": "b", "startTime": "yesterday", "type": "SPAN"}\n', "line 1: it has no time at which it started"),
])
def test_documents_that_are_damaged(tmp_path, name, text, said):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    failed = run("import", file, "--data", tmp_path / "data", check=False)
    assert failed.returncode == 1 and said in failed.stderr, failed.stderr


def test_good_rows_are_kept_beside_bad_ones(tmp_path):
    data = tmp_path / "data"
    lines = (LANGFUSE / "observations.jsonl").read_text().splitlines()
    file = tmp_path / "x.jsonl"
    file.write_text("\n".join([lines[0], "{", '{"id": "q", "traceId": "b"}', lines[1], lines[2][:50]]))
    said = run("import", file, "--data", data).stdout
    assert "3 rejected" in said and "line 2:" in said and "line 3: it has no time at which it started" in said and "line 5: the file ends inside it" in said
    assert counts(data)["spans"] == 2
    many = tmp_path / "iteration_000001" / "train_rollout_summaries.jsonl"
    many.parent.mkdir()
    line = (TINKER / "iteration_000001" / "train_rollout_summaries.jsonl").read_text().splitlines()[0]
    with open(many, "w") as out:
        for n in range(100_000):
            out.write(line.replace('"traj_idx": 0', f'"traj_idx": {n}') + "\n")
    run("import", many, "--run", "many", "--data", data)
    assert rows(data, "samples", "count(*) as n", "run_id = 'many'") == [{"n": 100_000}]


def test_a_server_imports_what_is_added_and_remembers_it(tmp_path, serve):
    data, folder = tmp_path / "data", tmp_path / "runs"
    lines = (PRIME / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl").read_bytes().splitlines(keepends=True)
    file = folder / "wordle" / "rollouts" / "step_1" / "train" / "all" / "traces.jsonl"
    flags = ["--watch", str(folder), "--watch", str(tmp_path / "dumps" / "rollout_*.pt")]
    server = serve(data, *flags)
    samples = lambda: server.one("select count(*) from samples")
    # The folder comes later than the server.
    file.parent.mkdir(parents=True)
    file.write_bytes(lines[0] + lines[1][:100])
    wait_until(lambda: samples() == 1)
    with open(file, "ab") as f:
        f.write(lines[1][100:] + lines[2])
    wait_until(lambda: samples() == 3)
    # So does a dump that a pattern names. One that is cut off is told in the log, and the server goes on.
    (tmp_path / "dumps").mkdir()
    dumps = sorted((FIXTURES / "slime").glob("**/rollout_*.pt"))
    (tmp_path / "dumps" / "rollout_7.pt").write_bytes(dumps[0].read_bytes()[:2000])
    shutil.copy(dumps[0], tmp_path / "dumps" / "rollout_8.pt")
    known = lambda: {r["run_id"] for r in server.get("/api/v1/runs").json()["runs"]}
    wait_until(lambda: len(known()) == 2)
    runs = known()
    # The metrics of steps are worked out as for any other run.
    wait_until(lambda: server.one("select count(*) from metrics where step is not null") > 0)
    busy = run("import", folder, "--data", data, check=False)
    assert busy.returncode == 1 and "serve --watch" in busy.stderr
    # A run that was deleted does not come back with a restart; what is new does.
    [wordle] = [r for r in runs if "wordle" in r]
    assert requests.delete(f"{server.url}/api/v1/runs/{wordle}", timeout=30).ok
    # Nor when something else is imported.
    shutil.copy(dumps[0], tmp_path / "dumps" / "rollout_9.pt")
    memory = data / "watched.json"
    wait_until(lambda: "rollout_9.pt" in memory.read_text())
    assert known() == runs - {wordle}
    # The dump that is cut off is not remembered: another version may read it.
    assert "rollout_7.pt" not in memory.read_text()
    server.stop()
    server = serve(data, *flags)
    with open(file, "ab") as f:
        f.write(lines[3])
    wait_until(lambda: samples() > 0 and server.one(f"select count(*) from samples where run_id = '{wordle}'") == 1)


def test_the_report_of_a_run_without_times_speaks_of_rewards(tmp_path):
    data = tmp_path / "data"
    run("import", TRL, "--data", data)
    [name] = [row["run_id"] for row in sql(data, "select run_id from runs")]
    said = run("report", name, "--data", data).stdout
    assert "3 steps without spans: nothing is known about their times." in said and "0 s" not in said
    means = {row["step"]: row["mean"] for row in sql(data, "select step, avg(reward) as mean from samples where split = 'train' group by step")}
    table = [line.split()[:3] for line in said.split("mean reward")[1].splitlines()[1:]]
    assert [[int(step), int(count), float(mean)] for step, count, mean in table if step.isdigit()] == [
        [step, 8, round(mean, 3)] for step, mean in sorted(means.items())]
    one = run("report", name, "--step", "2", "--data", data).stdout
    assert one.startswith("Step 2 has no spans: nothing is known about its times.") and "Critical path" not in one and "Health" in one
