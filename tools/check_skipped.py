"""Fails when a test ran in none of the environments: ``check_skipped.py OUTCOMES.json…``.

Each file is what ``pytest --outcomes FILE`` wrote in one environment. A test may be skipped where
its framework is missing, but it has to run somewhere; so has every module that was skipped whole.
A module that needs a program of the system's may go without it on a developer's machine: not in CI.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

#: Module -> the Debian package that it needs; CI installs them all.
NEEDS_PACKAGE = {"tests/numa/test_topology_lstopo.py": "hwloc-nox"}


def never_run(environments: list[dict[str, str]]) -> list[str]:
    """Return the tests, or modules, that were skipped wherever they were collected."""
    ran = {
        name for found in environments for name, outcome in found.items() if outcome != "skipped"
    }
    modules_that_ran = {name.partition("::")[0] for name in ran}
    skipped = {name for found in environments for name in found} - ran
    return sorted(name for name in skipped if "::" in name or name not in modules_that_ran)


def main() -> int:
    """Compare the files named on the command line; return the exit status."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    missing = never_run(found)
    if not os.environ.get("CI"):
        for module, package in NEEDS_PACKAGE.items():
            left = [name for name in missing if name.partition("::")[0] != module]
            if left != missing:
                print(f"skipped, since the Debian package {package} is not installed: {module}")
            missing = left
    for name in missing:
        print(f"skipped in every environment: {name}")
    print(f"{len(missing)} tests ran in no environment, {sum(map(len, found))} outcomes compared")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
