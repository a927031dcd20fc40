"""`python -m jaxexp` is the command line `jaxexp`."""

import sys

from jaxexp._cli.start import main

if __name__ == "__main__":
    sys.exit(main())
