"""``python -m cluster``; see ``cluster.cli``."""

from __future__ import annotations

import os
import sys

from cluster.cli import main

sys.exit(main(sys.argv[1:], os.environ))
