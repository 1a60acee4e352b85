"""What a test process says: the interpreter, whether Loongkit was armed in it, who was ahead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from loongkit import __version__
from loongkit.activation import versions
from loongkit.cli.doctor.finding import Finding, note, ok, problem
from loongkit.cli.doctor.probe import Answer, Probe

OLDEST = (3, 10)
BY_IMPORT = "use `import loongkit.all` at the top of the training script"


def check(probe: Probe, python: str, prelude: str, by_launcher: bool) -> list[Finding]:
    """Return what the answer of a test process means.

    ``by_launcher`` tells that it was started as loongkit-run does, not with PYTHONPATH as it is.
    """
    answer = probe.answer
    if answer is None:
        reason = f"{probe.failure}: {probe.error}" if probe.error else probe.failure
        return [problem("interpreter", f"{python}: {reason}", "give the job's with --python PATH")]
    findings = list(_interpreter(answer, python))
    if not is_supported(answer):
        return findings
    return [
        *findings,
        _start_up(answer, probe.error, prelude, by_launcher),
        *_chain(answer, probe.error, prelude),
        *_owner_of_the_name(answer, prelude),
    ]


def is_supported(answer: Answer) -> bool:
    """Tell whether Loongkit runs on that interpreter; on any other it stays silent."""
    release = versions.release(answer.version) or ()
    return answer.implementation == "CPython" and release >= OLDEST


def _interpreter(answer: Answer, python: str) -> Iterator[Finding]:
    found = f"{answer.implementation} {answer.version}, {python}"
    if not is_supported(answer):
        yield problem(
            "interpreter",
            f"{found}: Loongkit is silent there, it runs on CPython >= 3.10",
            "start the job with a CPython >= 3.10",
        )
        return
    yield ok("interpreter", found)
    if os.path.realpath(answer.prefix) != os.path.realpath(sys.prefix):
        yield note(
            "interpreter",
            "it is of another environment than this Loongkit: only the package loongkit is loaded "
            "there, by its path; everything else stays that environment's own",
        )


def _start_up(answer: Answer, error: str, prelude: str, by_launcher: bool) -> Finding:
    check_name = "start-up"
    way = "started as loongkit-run does it" if by_launcher else "started with PYTHONPATH as it is"
    if answer.armed and _is_ours(answer.package, prelude):
        return ok(check_name, f"Loongkit {answer.package_version} is armed in a process {way}")
    if answer.armed:
        return problem(
            check_name,
            f"another Loongkit, {answer.package_version} in {os.path.dirname(answer.package)}, is "
            f"armed in a process {way}; this one is {__version__}",
            "take its folder out of PYTHONPATH, or start the job with loongkit-run",
        )
    if _same_file(answer.winner, os.path.join(prelude, "sitecustomize.py")):
        if answer.importable and not _is_loongkit(answer.importable):
            return problem(
                check_name,
                f"{answer.importable} is called loongkit, too: a job would get Loongkit in its "
                "place, so Loongkit stays off",
                "rename or remove that one",
            )
        return problem(
            check_name,
            f"Loongkit's sitecustomize runs in a process {way}, but Loongkit isn't armed: "
            f"{error or 'it says nothing'}",
            "install Loongkit again",
        )
    if not answer.winner:
        return problem(
            check_name,
            f"no sitecustomize is found in a process {way}: the interpreter doesn't read "
            "PYTHONPATH",
            BY_IMPORT,
        )
    if by_launcher:
        advice = f"a .pth file may have put it there: remove that one, or {BY_IMPORT}"
    else:
        advice = f"put {prelude} first on PYTHONPATH, as loongkit-run does, or {BY_IMPORT}"
    return problem(check_name, f"another sitecustomize is ahead: {answer.winner}", advice)


def _chain(answer: Answer, error: str, prelude: str) -> Iterator[Finding]:
    """Say which sitecustomize the prelude runs after Loongkit, if there is one."""
    if not _same_file(answer.winner, os.path.join(prelude, "sitecustomize.py")):
        return
    if not answer.following:
        yield ok("sitecustomize", "there is no other one than Loongkit's")
    elif answer.following_ran:
        yield ok("sitecustomize", f"behind Loongkit's, {answer.following} runs as well")
    else:
        yield note(
            "sitecustomize",
            f"behind Loongkit's, {answer.following} runs as well and fails: {error}",
            "mend it; it would fail without Loongkit too",
        )


def _owner_of_the_name(answer: Answer, prelude: str) -> Iterator[Finding]:
    name = "name"
    found = answer.importable
    if found and _is_loongkit(found) and not _is_ours(found, prelude):
        yield note(
            name,
            f"`import loongkit` by itself finds Loongkit "
            f"{version_in(found) or 'of an unknown version'} in {os.path.dirname(found)}; "
            f"the prelude loads Loongkit {__version__} in {os.path.dirname(prelude)}",
            "install one version: with two in one job, processes of the later step aside",
        )
    for owner, version in answer.owners:
        if owner.lower() != "loongkit":
            yield note(
                name,
                f"the distribution {owner} {version} installs a package called loongkit, too",
                f"uninstall {owner}, then install Loongkit again: they overwrite each other",
            )
    if not answer.importable:
        yield note(
            name,
            "Loongkit isn't installed for that interpreter: the prelude works, "
            "`import loongkit.all` alone doesn't",
        )


def version_in(file: str) -> str:
    """Return the ``__version__`` in a Python file, read as text, "" where there is none."""
    try:
        with open(file, encoding="utf-8") as opened:
            lines = opened.read(65536).splitlines()
    except (OSError, UnicodeError):
        return ""
    for line in lines:
        left, _, right = line.partition("=")
        if left.strip() == "__version__":
            return right.split("#")[0].strip().strip("'\"")
    return ""


def _is_loongkit(file: str) -> bool:
    return os.path.isfile(os.path.join(os.path.dirname(file), "activation", "start.py"))


def _is_ours(file: str, prelude: str) -> bool:
    return _same_file(os.path.dirname(file), os.path.dirname(prelude))


def _same_file(one: str, other: str) -> bool:
    return bool(one) and os.path.realpath(one) == os.path.realpath(other)
