"""The stacks of this process, when the server asks for them: see `src/stacks.rs`."""

from __future__ import annotations

import os
import sys
import threading

from . import _core
from ._errors import swallowed

# Not imported at run time: the package must be quick to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

_MAX_THREADS = 512
_MAX_FRAMES = 100
#: Tasks of asyncio that are looked at, and groups of them that are shown.
_MAX_TASKS = 2_000
_MAX_GROUPS = 32

_ready_in = 0


def start() -> None:
    """Makes this process able to answer. Does nothing the second time, but a forked child needs it again."""
    global _ready_in
    if _ready_in == os.getpid():
        return
    _ready_in = os.getpid()
    try:
        asked, wake = os.pipe()
        os.set_blocking(wake, False)
        # It waits for a byte without Python's lock, and costs nothing until then.
        threading.Thread(target=_answer, args=(asked,), name="rollscope-stacks", daemon=True).start()
        _core.stacks_ready(wake, *_faulthandler())
    except Exception as error:
        swallowed(error)


def _faulthandler() -> tuple[int, int]:
    """The file that faulthandler writes to, and the signal that makes it. -1: there is none."""
    number = _core.free_signal() if _signal is None else _signal
    if number is None or not hasattr(os, "memfd_create"):
        return -1, -1
    import faulthandler

    dump = os.memfd_create("rollscope-stacks")
    faulthandler.register(number, file=dump, all_threads=True, chain=False)
    _remember(number)
    return dump, number


_signal: int | None = None


def _remember(number: int) -> None:
    """A forked child uses the same signal: it has the handler already."""
    global _signal
    _signal = number


def _answer(asked: int) -> None:
    # Only plain system calls wait here: a thread that the interpreter ends at its exit must not be inside of Rust.
    while os.read(asked, 64):
        try:
            _core.report_stacks("\n".join(lines()))
        except Exception as error:
            swallowed(error)


def lines() -> Iterator[str]:
    """The stacks of all threads, from the inside out, written as py-spy writes them; then the tasks of asyncio."""
    # Not the arguments: there may be a password among them.
    yield f"Process {os.getpid()}: {os.path.basename(sys.executable or 'python')} {(sys.argv or [''])[0][:500]}"
    yield f"Python v{sys.version.split()[0]}"
    yield ""
    # Not `threading.enumerate`, which takes a lock of the program.
    names = {ident: thread.name for ident, thread in dict(getattr(threading, "_active", {})).items()}
    own = threading.get_ident()
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    for ident, frame in frames[:_MAX_THREADS]:
        if ident != own:
            yield f'Thread {ident} (idle): "{names.get(ident, "?")}"'
            yield from _frames(frame)
    yield from _tasks()


def _frames(frame: FrameType | None) -> Iterator[str]:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield _line(frame.f_code, frame.f_lineno)
        frame = frame.f_back


def _line(code: CodeType, number: int | None) -> str:
    return f"    {getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{number or 0})"


def _tasks() -> Iterator[str]:
    """Tasks of asyncio that wait at the same place, together: a rollout may have thousands of them."""
    tasks = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return
    # The loops run in other threads, so `asyncio.all_tasks` cannot be asked without knowing them.
    known: Any = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None) or ()
    groups: dict[tuple[str, ...], int] = {}
    seen = 0
    for reference in list(getattr(known, "data", known)):
        task = reference() if callable(reference) else reference
        if task is None or task.done():
            continue
        seen += 1
        if seen > _MAX_TASKS:
            break
        place = tuple(_awaited(task.get_coro()))
        groups[place] = groups.get(place, 0) + 1
    for place, count in sorted(groups.items(), key=lambda item: -item[1])[:_MAX_GROUPS]:
        of = "task" if count == 1 else f"{count} tasks"
        yield f'Thread 0 (idle): "asyncio: {of}"'
        yield from place


def _awaited(coroutine: Any) -> list[str]:
    """From what a coroutine waits for in the end, out to itself."""
    out: list[str] = []
    while coroutine is not None and len(out) < _MAX_FRAMES:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                out.append(_line(frame.f_code, frame.f_lineno))
                coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
                break
        else:
            break
    out.reverse()
    return out
