"""What others wrote and we ship: licences that allow it, from the registries and nowhere else. `make audit` also asks for advisories."""

import json
import re
import subprocess
import tomllib

from conftest import ROOT

ALLOWED = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
# Tools that build the page or test it. Nothing of them is in it.
TOOLS_ONLY = {"BlueOak-1.0.0", "Python-2.0"}


def allowed(licence, more=frozenset()):
    """Whether a choice of an SPDX expression is allowed. `/` is how older crates write OR."""
    words = re.findall(r"[()]|[^()\s]+", licence.replace("/", " OR "))

    def either():
        good = both()
        while words and words[0] == "OR":
            words.pop(0)
            good = both() or good
        return good

    def both():
        good = one()
        while words and words[0] == "AND":
            words.pop(0)
            good = one() and good
        return good

    def one():
        word = words.pop(0)
        if word == "(":
            good = either()
            assert words.pop(0) == ")"
            return good
        if words and words[0] == "WITH":
            words.pop(0)
            word = f"{word} WITH {words.pop(0)}"
        return word in ALLOWED | more

    good = either()
    assert not words, licence
    return good


def test_expressions_are_read():
    assert allowed("MIT/Apache-2.0") and allowed("GPL-3.0 OR (MIT AND ISC)") and allowed("Apache-2.0 WITH LLVM-exception")
    assert not allowed("GPL-3.0") and not allowed("MIT AND GPL-3.0") and not allowed("Apache-2.0 WITH something")


def test_crates():
    for manifest in ("Cargo.toml", "python/Cargo.toml"):
        done = subprocess.run(["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", ROOT / manifest],
                              capture_output=True, text=True, check=True)
        packages = [package for package in json.loads(done.stdout)["packages"] if package["source"]]
        assert len(packages) > 10
        assert [p["id"] for p in packages if not p["source"].startswith("registry+")] == []
        assert [(p["name"], p["license"]) for p in packages if not allowed(p["license"] or "none")] == []


def test_packages_of_the_page():
    packages = json.loads((ROOT / "ui" / "package-lock.json").read_text())["packages"]
    wrong = [(name, package.get("license")) for name, package in packages.items()
             if name and not allowed(package.get("license", "none"), TOOLS_ONLY if package.get("dev") else frozenset())]
    assert wrong == []
