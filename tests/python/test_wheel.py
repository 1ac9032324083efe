"""The wheel runs on machines older than the one that built it."""

import importlib.util
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

CHECK = ROOT / "python" / "check_wheel.py"


@pytest.fixture
def wheel():
    (built,) = (ROOT / "python" / "target" / "test-wheel").glob("rollscope-*.whl")
    return built


@pytest.fixture
def check_wheel():
    spec = importlib.util.spec_from_file_location("check_wheel", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_promises_and_needs_no_newer_c_library_than_rhel_8_has(wheel, check_wheel):
    assert check_wheel.promised(wheel) <= (2, 28)
    needs = check_wheel.check(wheel)
    (extension,) = [name for name in needs if name.startswith("rollscope/_core") and name.endswith(".so")]
    assert (2, 0) < needs[extension] <= (2, 28)


def test_a_wheel_whose_files_need_more_than_its_tag_says_is_refused_with_words(wheel, tmp_path):
    tag = wheel.stem.rsplit("-", 1)[1]
    promises_too_much = tmp_path / wheel.name.replace(tag, "manylinux_2_5_x86_64")
    shutil.copy(wheel, promises_too_much)
    done = subprocess.run([sys.executable, CHECK, promises_too_much], capture_output=True, text=True)
    assert done.returncode == 1
    assert "rollscope/_core" in done.stderr and "needs glibc 2." in done.stderr and "promises that 2.5 is enough" in done.stderr
