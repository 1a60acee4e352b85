"""``python -m loongkit``: the same as the command ``loongkit``."""

import sys

from loongkit.cli.main import main

sys.exit(main())
