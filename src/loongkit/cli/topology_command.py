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


def run(
    root: str | None, *, ranks: int | None, as_json: bool, files: Mapping[str, str | None]
) -> int:
    """Show the machine below ``root`` and return the exit status: 1 where something failed.

    None: that of a job here; a record is then one of this machine.

    ``files`` holds the paths asked for under "record", "svg" and "png". Where there is one, the
    paths are printed instead of the machine, unless it was asked for as JSON.
    """
    try:
        view = topology.gather(os.environ, root, ranks)
        wanted = {kind: path for kind, path in files.items() if path}
        for kind, path in wanted.items():
            _write(path, _content(kind, view, root))
            if not as_json:
                output.write(f"{kind} written to {path}\n")
    except (NotAMachine, PillowMissing, OSError) as error:
        print(f"loongkit topology: {error}", file=sys.stderr)
        return 1
    if as_json:
        output.write(topology_text.as_json(view))
    elif not wanted:
        output.write(output.without_home(topology_text.as_text(view)))
    return 0


def _content(kind: str, view: View, root: str | None) -> bytes:
    if kind == "record":
        return record.capture(root or "/").encode()
    picture = topology_picture.draw(view)
    if kind == "png":
        return as_png(picture)
    return topology_svg.render(picture, topology_text.counted(view)).encode()


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
