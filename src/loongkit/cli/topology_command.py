"""Runs ``loongkit topology``: writes the files that were asked for, else prints the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from loongkit.activation.files import NotAMachine
from loongkit.cli import output, topology, topology_picture, topology_svg, topology_text
from loongkit.cli.topology import View
from loongkit.cli.topology_png import PillowMissing
from loongkit.cli.topology_png import render as as_png
from loongkit.numa import record

#: Names of a file that mean standard output.
STANDARD_OUTPUT = ("-", "/dev/stdout")


def run(
    root: str | None, *, ranks: int | None, as_json: bool, files: Mapping[str, str | None]
) -> int:
    """Show the machine below ``root`` and return the exit status: 1 where something failed.

    None: that of a job here; a record is then one of this machine.

    ``files`` holds the paths asked for under "record", "svg" and "png". Where there is one, the
    paths are printed instead of the machine, unless it was asked for as JSON. Where one of them
    is standard output, nothing else goes there.
    """
    wanted = {kind: path for kind, path in files.items() if path is not None}
    try:
        view = topology.gather(os.environ, root, ranks)
        for kind, path in wanted.items():
            _write(path, _content(kind, view, root))
            if path not in STANDARD_OUTPUT and not as_json:
                _tell(f"{kind} written to {path}\n", wanted)
    except (NotAMachine, PillowMissing, OSError) as error:
        print(f"loongkit topology: {error}", file=sys.stderr)
        return 1
    if as_json:
        output.write(topology_text.as_json(view))
    elif not wanted:
        output.write(output.without_home(topology_text.as_text(view)))
    return 0


def competing(as_json: bool, files: Mapping[str, str | None]) -> list[str]:
    """Return the options whose output would be mixed on standard output; none where it won't be."""
    found = [f"--{kind}" for kind, path in files.items() if path in STANDARD_OUTPUT]
    found += ["--json"] * as_json
    return found if len(found) > 1 else []


def _content(kind: str, view: View, root: str | None) -> bytes:
    if kind == "record":
        return record.capture(root or "/").encode()
    picture = topology_picture.draw(view)
    if kind == "png":
        return as_png(picture)
    return topology_svg.render(picture, topology_text.parts(view)).encode()


def _write(path: str, content: bytes) -> None:
    if path in STANDARD_OUTPUT:
        output.write_bytes(content)
        return
    with open(path, "wb") as file:
        file.write(content)


def _tell(text: str, wanted: Mapping[str, str]) -> None:
    if any(path in STANDARD_OUTPUT for path in wanted.values()):
        sys.stderr.write(text)
    else:
        output.write(text)
