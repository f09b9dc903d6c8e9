"""`python -m wmresearch.cli`."""

from wmresearch.cli import main

main()
