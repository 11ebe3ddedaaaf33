"""`python experiments/paper COMMAND`, in the root of a clone of kvib."""

import sys
from pathlib import Path

sys.path.pop(0)  # this folder: its files are modules of `paper`, not of their own
sys.path.insert(0, str(Path(__file__).parents[1]))

from paper import main

main()
