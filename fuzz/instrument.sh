#!/bin/sh
# Compiles our libraries with the counters that libFuzzer follows. Cargo calls it for the crates of the workspace only
# (RUSTC_WORKSPACE_WRAPPER), so dependencies are those of the other builds. Build scripts and programs have no use for counters.
# With TRACE_COMPARES=0, inputs take three quarters of the time, and values that code compares with are found in dictionaries only.
for argument; do
    if [ "$last" = --crate-type ] && [ "$argument" = lib ]; then
        exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares="${TRACE_COMPARES:-1}"
    fi
    last=$argument
done
exec "$@"
