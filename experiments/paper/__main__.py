"""`python experiments/paper COMMAND`, in the root of a clone of kvib."""

import sys
from pathlib import Path

sys.path.pop(0)  # this folder, whose files are modules of `paper` and not top-level modules
sys.path.insert(0, str(Path(__file__).parents[1]))

from paper import main

main()
