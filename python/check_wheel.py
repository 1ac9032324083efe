"""Fails where something in a wheel needs a newer C library than the wheel's name promises: `python check_wheel.py WHEEL`.

pip goes by the name alone; a program that needs more is installed and then does not start."""

import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection


def promised(wheel):
    """The glibc of the wheel's tag, as (major, minor): the newest, where it has several."""
    found = re.findall(r"manylinux_(\d+)_(\d+)_", Path(wheel).name)
    if not found:
        raise ValueError(f"{Path(wheel).name} has no tag such as manylinux_2_28")
    return max((int(major), int(minor)) for major, minor in found)


def needed(data):
    """The newest version of glibc's symbols that an ELF file asks for, as (major, minor); (0, 0) where it asks for none."""
    newest = (0, 0)
    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    if match := re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name):
                        newest = max(newest, (int(match[1]), int(match[2])))
    return newest


def check(wheel):
    """What the files of the wheel need, by name. Raises ValueError where that is more than the tag promises."""
    limit = promised(wheel)
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            data = files.read(name)
            if data.startswith(b"\x7fELF"):
                found[name] = needed(data)
    for name, version in found.items():
        if version > limit:
            raise ValueError(
                f"{name} needs glibc {version[0]}.{version[1]}, but the tag of {Path(wheel).name} promises that "
                f"{limit[0]}.{limit[1]} is enough; build it with `make wheel`, which links against the older one"
            )
    return found


if __name__ == "__main__":
    for wheel in sys.argv[1:]:
        try:
            for name, (major, minor) in check(wheel).items():
                print(f"{name} needs glibc {major}.{minor}")
        except ValueError as error:
            sys.exit(f"error: {error}")
