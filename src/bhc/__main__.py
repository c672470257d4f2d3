"""``python -m bhc`` is the command line."""

from bhc.cli import main

main()
