"""`python -m reprise`."""

from .command import main

main()
