#!/usr/bin/env python3
"""The linker of `make wheel`: Zig, which has the symbols of every older C library. Zig does not fold equal functions, though, and
the program is to be small: where that is asked for (`-Wl,--icf=all`), Rust's own lld links once more what Zig put together."""

import os
import platform
import shlex
import subprocess
import sys

FOLD = "-Wl,--icf=all"


def main(arguments):
    target = f"{platform.machine()}-linux-gnu.{os.environ['GLIBC']}"
    zig = ["cargo-zigbuild", "zig", "cc", "--", "-target", target, *(a for a in arguments if a != FOLD)]
    if FOLD not in arguments:
        return subprocess.run(zig).returncode
    done = subprocess.run(zig, env={**os.environ, "ZIG_VERBOSE_LINK": "1"}, stderr=subprocess.PIPE, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ld.lld ")]
    if done.returncode != 0 or len(lines) != 1:
        sys.stderr.write(done.stderr)
        return done.returncode or f"error: Zig was to print one `ld.lld` line, but printed {len(lines)}"
    rustc = os.environ.get("RUSTC", "rustc")
    libraries = subprocess.run([rustc, "--print", "target-libdir"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    lld = os.path.join(os.path.dirname(libraries), "bin", "gcc-ld", "ld.lld")
    return subprocess.run([lld, *shlex.split(lines[0])[1:], "--icf=all"]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
