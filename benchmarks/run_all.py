"""Run every benchmark, one after another, and print their figures.

``--json`` prints one object a line and nothing else on standard output; ``--quick`` takes fewer
pairs. The exit status is 1 when a benchmark failed to run; a figure never fails, since it belongs
to the machine that measured it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from _pairs import arguments

FOLDER = Path(__file__).resolve().parent

#: Not a comparison: proves on a GPU what no CPU can show, see docs/measurements.
NOT_BENCHMARKS = ("run_all.py", "gpu_check.py")


def scripts() -> list[Path]:
    """Return the benchmarks of this folder."""
    return [
        path
        for path in sorted(FOLDER.glob("*.py"))
        if not path.name.startswith("_") and path.name not in NOT_BENCHMARKS
    ]


def main() -> int:
    """Run them all; return the exit status."""
    options = arguments(__doc__)
    flags = [flag for flag in ("json", "quick") if getattr(options, flag)]
    failed = []
    for script in scripts():
        if not options.json:
            print(f"--- {script.stem}", flush=True)
        command = [sys.executable, str(script), *(f"--{flag}" for flag in flags)]
        if subprocess.run(command, cwd=FOLDER, check=False).returncode != 0:
            failed.append(script.name)
    if failed:
        print(f"failed to run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
