"""Reads the command line of a job: its interpreters and their flags, shell scripts, archives."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from loongkit.activation import process
from loongkit.cli.doctor import shell

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
# The first lines that pip and uv write where the interpreter's path is too long for a kernel.
_LONG_SHEBANG = re.compile(r"#!/bin/sh\s*\n'''exec' (.+?) \"\$0\"")
_MAX_BYTES = 1 << 18


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that the command names, its flags as letters, and where it is named.

    ``path`` is None where there is no such program here.
    """

    word: str
    path: str | None
    flags: str
    where: str


@dataclass(frozen=True)
class Script:
    """Shell text: where it stands, and the folder of its file (None behind ``bash -c``)."""

    where: str
    text: str
    folder: str | None


@dataclass
class Command:
    """What was found in the words of a command.

    ``assigned`` holds the values that `env` gives to PYTHONPATH in the command itself, ``cleared``
    the words with which it drops it; ``archives`` pairs of file and kind, "pex" or "zipapp".
    """

    program: str = ""
    launcher: bool = False
    interpreters: list[Interpreter] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    archives: list[tuple[str, str]] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    cleared: str = ""


def read(words: Sequence[str]) -> Command:
    """Read a command line; files that can't be read count as files of no interest."""
    command = Command()
    rest = _through_wrappers(list(words), command)
    if rest:
        command.program = rest[0]
        _read_words(rest, "the command", command)
    return command


def _through_wrappers(words: list[str], command: Command) -> list[str]:
    """Take loongkit-run, env and assignments off the front."""
    while words:
        name = os.path.basename(words[0])
        if name == "loongkit-run":
            # It puts the prelude on PYTHONPATH again, whatever stood before it.
            command.launcher, command.cleared = True, ""
            command.assigned.clear()
            words = words[2:] if words[1:2] == ["--"] else words[1:]
        elif name == "env":
            words = _through_env_options(words[1:], command)
        elif _ASSIGNMENT.match(words[0]):
            if words[0].startswith("PYTHONPATH="):
                command.assigned.append(words[0].partition("=")[2])
            words = words[1:]
        else:
            break
    return words


def _through_env_options(words: list[str], command: Command) -> list[str]:
    while words and words[0].startswith("-"):
        option, words = words[0], words[1:]
        if option in ("-i", "-", "--ignore-environment"):
            command.cleared = f"env {option}"
        elif option in ("-u", "--unset", "-C", "--chdir") and words:
            if words[0] == "PYTHONPATH" and option != "-C":
                command.cleared = f"env {option} PYTHONPATH"
            words = words[1:]
        elif option in ("-uPYTHONPATH", "--unset=PYTHONPATH"):
            command.cleared = f"env {option}"
        elif option in ("-S", "--split-string") and words:
            words = [*_split(words[0]), *words[1:]]
        elif option == "--":
            break
    return words


def _read_words(words: list[str], where: str, command: Command) -> None:
    """Collect what the words of one command line name; the first of them is the program."""
    for position, word in enumerate(words):
        name = os.path.basename(word)
        following = words[position + 1 :]
        if _PYTHON.fullmatch(name):
            path = shutil.which(word)
            flags = process.command_line([word, *following])[0]
            command.interpreters.append(Interpreter(word, path, flags, where))
        elif name in _SHELLS:
            text = _text_behind_c(following)
            if text is not None:
                _read_script(Script(f"{where}, behind {name} -c", text, None), command)
        else:
            path = shutil.which(word) if position == 0 else word
            if path and os.path.isfile(path):
                _read_file(path, word, position == 0, command)


def _text_behind_c(words: list[str]) -> str | None:
    for position, word in enumerate(words):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and "c" in word:
            return words[position + 1] if position + 1 < len(words) else None
    return None


def _read_file(path: str, word: str, is_program: bool, command: Command) -> None:
    kind = _archive_kind(path)
    if kind and (word, kind) not in command.archives:
        command.archives.append((word, kind))
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    first = _shebang(text)
    runs = os.path.basename(first[0]) if first else ""
    if runs in _SHELLS or (path.endswith(".sh") and not kind):
        if all(script.where != word for script in command.scripts):
            _read_script(Script(word, text, os.path.dirname(path)), command)
    elif is_program and first and _PYTHON.fullmatch(runs):
        where = f"the first line of {word}"
        flags = process.command_line(first)[0]
        command.interpreters.append(Interpreter(first[0], shutil.which(first[0]), flags, where))


def _shebang(text: str) -> list[str]:
    """Return interpreter and options of a script's first line, `env` taken off."""
    long = _LONG_SHEBANG.match(text)
    if long:
        return [long[1].strip('"')]
    if not text.startswith("#!"):
        return []
    words = text[2:].split("\n", 1)[0].split()
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        while words and (words[0].startswith("-") or _ASSIGNMENT.match(words[0])):
            words = words[1:]
    return words


def _archive_kind(path: str) -> str:
    try:
        if not zipfile.is_zipfile(path):
            return ""
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return ""
    if "PEX-INFO" in names:
        return "pex"
    return "zipapp" if "__main__.py" in names else ""


def _read_script(script: Script, command: Command) -> None:
    command.scripts.append(script)
    for number, line in shell.lines(script.text):
        words = _split(line)
        while words and _ASSIGNMENT.match(words[0]):
            words = words[1:]
        if words:
            _read_words(words, f"{script.where}, line {number}", command)


def _split(line: str) -> list[str]:
    """Return the words of a line of shell text, none where its quotes don't close."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return []
