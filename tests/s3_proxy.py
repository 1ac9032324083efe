"""Stands between rollscope and an S3 server, and does what networks and stores do on bad days.

Requests are passed on as they are, `Host` included, because it is signed. Which request meets which fault is decided by a seed and by the
order in which requests come."""

import asyncio
import random
import re
import socket
import struct
import threading
import time
from collections import Counter

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
# Reset without a word.
AT_ONCE = struct.pack("ii", 1, 0)
# Faults that a request may meet, each with its rate.
FAULTS = ("unavailable", "reset_before", "reset_after", "slow")


class Head:
    """The lines of a request or of an answer before its body."""

    def __init__(self, raw):
        self.raw = raw
        self.first, *lines = raw.decode("latin-1").split("\r\n")
        self.fields = {}
        for line in lines:
            name, found, value = line.partition(":")
            if found:
                self.fields[name.strip().lower()] = value.strip()

    async def body(self, reader):
        """The body as it was sent, chunks with their marks."""
        if "chunked" in self.fields.get("transfer-encoding", "").lower():
            parts = []
            while True:
                line = await reader.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                parts += [line, await reader.readexactly(size + 2)]
                if size == 0:
                    return b"".join(parts)
        if "content-length" in self.fields:
            return await reader.readexactly(int(self.fields["content-length"]))
        return None


class Proxy:
    """Listens on a port of its own, in a thread of its own. What it does may be changed at any time.

    `rates`: how often a request meets each of [`FAULTS`]. `only`: which requests may meet them, by method and path.
    `out_until`: nobody is there before this moment of `time.monotonic()`; with `hangs`, somebody is, and says nothing. So for `only`, too.
    `delay_s`: what every request takes longer. `spoil`: signatures are wrong. `forget_conditions`: the store has no exclusive creates."""

    def __init__(self, upstream, seed=0, rates=None, only=None):
        self.upstream = upstream
        self.dice = random.Random(seed)
        self.rates = rates or {}
        self.only = only
        self.out_until, self.hangs = 0.0, False
        self.delay_s, self.slow_s = 0.0, 2.0
        self.spoil = self.forget_conditions = False
        # What has happened.
        self.counts = Counter()
        self._loop = asyncio.new_event_loop()
        self._server = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[ready], daemon=True)
        self._thread.start()
        ready.wait()

    def env(self, env):
        """The environment of a client, with this in place of the server."""
        return {**env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def outage(self, seconds, hangs=False):
        self.hangs = hangs
        self.out_until = time.monotonic() + seconds
        self.counts["outages"] += 1

    @property
    def is_out(self):
        return time.monotonic() < self.out_until

    def stop(self):
        async def end():
            self._server.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024))
        self.port = self._server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()

    async def _serve(self, reader, writer):
        up = None
        try:
            while True:
                head = Head(await reader.readuntil(b"\r\n\r\n"))
                body = await head.body(reader) or b""
                if up is None:
                    up = await asyncio.open_connection(*self.upstream, limit=1 << 20)
                if not await self._answer(head, body, writer, up):
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, OSError):
            pass
        finally:
            for other in [writer] + ([up[1]] if up else []):
                other.close()

    def _reset(self, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        writer.transport.abort()
        return False

    def _fault(self):
        """Which fault this request meets."""
        if not self.rates:
            return None
        roll = self.dice.random()
        for fault in FAULTS:
            roll -= self.rates.get(fault, 0)
            if roll < 0:
                return fault
        return None

    async def _answer(self, head, body, writer, up):
        self.counts["requests"] += 1
        method, path, _ = head.first.split(" ", 2)
        is_meant = self.only is None or self.only(method, path)
        if self.is_out and is_meant:
            self.counts["during outages"] += 1
            while self.hangs and self.is_out:
                await asyncio.sleep(0.1)
            return self._reset(writer)
        fault = self._fault() if is_meant else None
        if fault:
            self.counts[fault] += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if fault == "slow":
            await asyncio.sleep(self.slow_s)
        if fault == "reset_before":
            return self._reset(writer)
        if fault == "unavailable":
            writer.write(b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\ncontent-length: %d\r\n\r\n" % len(SLOW_DOWN) + SLOW_DOWN)
            await writer.drain()
            return True
        raw = head.raw
        if self.spoil:
            self.counts["spoiled"] += 1
            raw = re.sub(rb"Signature=[0-9a-f]{8}", b"Signature=00000000", raw)
        up_reader, up_writer = up
        up_writer.write(raw + body)
        await up_writer.drain()
        answer = Head(await up_reader.readuntil(b"\r\n\r\n"))
        status = int(answer.first.split(" ")[1])
        # These have no body, whatever their length says.
        is_empty = head.first.startswith("HEAD ") or status in (204, 304)
        content = b"" if is_empty else await answer.body(up_reader)
        ends = content is None
        if ends:
            content = await up_reader.read()
        raw = answer.raw
        if self.forget_conditions and "if-none-match" in head.fields and status == 412:
            self.counts["conditions forgotten"] += 1
            raw, content = b'HTTP/1.1 200 OK\r\netag: "forgotten"\r\ncontent-length: 0\r\n\r\n', b""
        if fault == "reset_after" or (self.is_out and is_meant):
            return self._reset(writer)
        writer.write(raw + content)
        await writer.drain()
        return not (ends or "close" in answer.fields.get("connection", "").lower())
