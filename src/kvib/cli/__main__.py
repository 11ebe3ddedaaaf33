"""`python -m kvib.cli`."""

from kvib.cli import main

main()
