"""`python -m kvib`: the command line."""

from kvib.cli import main

main()
