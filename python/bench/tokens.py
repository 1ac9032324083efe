"""Logs tokens like those of a real run as a trainer does, and writes the same columns with pyarrow, in the same process.

    python python/bench/tokens.py SAMPLES TOKENS STEPS FOLDER     (ROLLSCOPE_ENDPOINT names the server)

Prints one JSON object: seconds until the server has acknowledged everything, and what pyarrow takes to write and read them.
"""

import json
import os
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import rollscope


def sample(chance, vocabulary, count):
    """Ids by Zipf's law with local repetition; three of five tokens are nearly certain; the trainer differs a little."""
    ids = vocabulary[np.minimum(chance.zipf(1.2, count), len(vocabulary)) - 1].astype(np.int32)
    again = chance.random(count) < 0.3
    back = chance.integers(1, 200, count)
    at = np.arange(count)
    ids = np.where(again & (at > back), ids[np.maximum(at - back, 0)], ids)
    sure = chance.random(count) < 0.6
    engine = np.where(sure, -chance.exponential(0.002, count), -chance.exponential(0.9, count)).astype(np.float32)
    trainer = np.minimum(engine + chance.normal(0, 0.01, count).astype(np.float32), 0).astype(np.float32)
    return ids, engine, trainer


def main():
    samples, tokens, steps = map(int, sys.argv[1:4])
    folder = sys.argv[4]
    chance = np.random.default_rng(7)
    vocabulary = chance.permutation(150_000)
    made = [sample(chance, vocabulary, tokens) for _ in range(samples)]
    rollscope.init(project="bench", id="bench")
    started = time.perf_counter()
    for n, (ids, engine, trainer) in enumerate(made):
        rollscope.log_tokens(
            f"s{n}",
            ids=ids,
            logprobs=engine,
            trainer_logprobs=trainer,
            step=n * steps // samples,
            engine=f"engine-{n % 4}",
            weight_version=n * steps // samples,
        )
        # A trainer does other things meanwhile. What does not fit the queue would go through the disk.
        while rollscope.stats()["queued_bytes"] > 32 << 20:
            time.sleep(0.002)
    assert rollscope.flush(120), "the server did not take everything"
    sent = time.perf_counter() - started
    lost = {name: rollscope.stats()[name] for name in ("spilled", "dropped", "rejected", "errors")}
    assert not any(lost.values()), lost
    started = time.perf_counter()
    table = pa.table(
        {
            "ids": [ids for ids, _, _ in made],
            "logprobs": [engine for _, engine, _ in made],
            "trainer_logprobs": [trainer for _, _, trainer in made],
        }
    )
    path = os.path.join(folder, "tokens.parquet")
    pq.write_table(table, path, compression="zstd", compression_level=3)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    written = time.perf_counter() - started
    started = time.perf_counter()
    pq.read_table(path)
    read = time.perf_counter() - started
    print(json.dumps({"sent_s": sent, "written_s": written, "read_s": read, "bytes": os.path.getsize(path)}))


if __name__ == "__main__":
    main()
