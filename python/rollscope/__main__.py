"""`python -m rollscope`: the rollscope program."""

import os
import sys

from ._embedded import find_binary

binary = find_binary()
if binary is None:
    sys.exit("the rollscope program was not found; install the wheel, or set ROLLSCOPE_BIN")
os.execv(binary, [binary, *sys.argv[1:]])
