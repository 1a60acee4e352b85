"""Write everything that is derived from the declarations: start-up index, docs, README tables.

``python tools/build_docs.py`` writes the files that are out of date; with ``--check`` it writes
nothing, names them and exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import build_index  # puts src/ on sys.path

from loongkit.activation import catalog, plan, settings, summary, versions
from loongkit.activation.feature import GROUPS, DeviceDefaults, Feature, Option
from loongkit.images import jit

ROOT = build_index.ROOT
FEATURE_PAGES = ROOT / "docs" / "features"
COMMAND = "python tools/build_docs.py"
NOTICE = f"<!-- Written by `{COMMAND}` from the declarations: edit those, not this file. -->"

#: Stands in a table for a default that a table further below has in full.
BY_HARDWARE = "[by {}](#defaults-that-depend-on-the-hardware)"

GROUP_TITLES = {
    "data": "Data preprocessing",
    "precision": "Precision",
    "operators": "Operators and model compilation",
    "resource": "Resource control",
}

#: What a training with AdamW on a machine without a GPU prints under LOONGKIT_ALL=1 (tested).
SAMPLE = (
    summary.Row("pytorch", False, None),
    summary.Row("allow_tf32", False, None),
    summary.Row("fused_adam", False, None),
    summary.Row("fused_adamw", True, None),
    summary.Row("numa_affinity", False, {"allow_asymmetric": False, "allow_index": False}),
    summary.Row("config_guards", True, None),
)

READING = f"""\
- **bool**: {", ".join(f"`{word}`" for word in settings.TRUE_WORDS)} are true; \
{", ".join(f"`{word}`" for word in settings.FALSE_WORDS)} are false. Letter case and surrounding \
blanks do not matter. Anything else, `true` and `false` included, counts as not set: the default \
or `LOONGKIT_ALL` decides.
- **int**, **text** and **word**: as usual. A value that cannot be read counts as not set.
- Each value that is not understood, and each `LOONGKIT_…` name that is none of those below, is one
  warning in the log for the whole job. An unknown name comes with a known one that is near to it,
  if any is.
- Names that Kubernetes makes for a service called `loongkit…` are ignored:
  `LOONGKIT_…SERVICE_HOST`, `LOONGKIT_…SERVICE_PORT…`, `LOONGKIT_…PORT`, `LOONGKIT_…PORT_…`.
- A feature's own variable wins over `LOONGKIT_ALL`, in both directions. `LOONGKIT_DISABLE` wins
  over both. The environment wins over the file that `LOONGKIT_CONFIG` names."""


def settings_page(features: tuple[Feature, ...]) -> str:
    """Return docs/settings.md: every variable with type, values, default and meaning."""
    general = [
        (f"`{name}`", _type(kind), _accepted(name, kind), _shown(default), meaning)
        for name, kind, default, meaning in settings.GENERAL
    ]
    switches = [
        (f"`{f.variable}`", str(f.level), _under_level(f), _release(f), f.summary) for f in features
    ]
    options = [
        (f"`{o.variable}`", _type(o.kind), _option_default(o), _release(f), o.summary)
        for f in features
        for o in f.options
    ]
    return "\n\n".join(
        [
            NOTICE,
            "# Settings",
            "Every setting is an environment variable. All of them can stand in the file that "
            "`LOONGKIT_CONFIG` names, too; see the [guide](guide.md#settings-in-a-file).",
            "## How values are read",
            READING,
            "## General",
            _table(("variable", "type", "accepted", "default", "meaning"), general),
            "## Switches of the features",
            f"Each is a bool ({settings.ACCEPTED['bool']}), and nothing is on of its own accord. A "
            "feature is on when its switch is on, or when its switch is not set and `LOONGKIT_ALL` "
            "is at least its level; the column *under its level* says what the latter does where "
            "this environment supports the feature. One that is not in this release is never on.",
            _table(("variable", "level", "under its level", "in this release", "what"), switches),
            "## Options of the features",
            f"A bool accepts {settings.ACCEPTED['bool']}; an int accepts "
            f"{settings.ACCEPTED['int']}.",
            _table(("variable", "type", "default", "in this release", "meaning"), options),
            "## Defaults that depend on the hardware",
            *_hardware_defaults(features),
            "## Not for you to set",
            "Loongkit sets these for its own child processes: "
            f"{', '.join(f'`{name}`' for name in settings.INTERNAL)}. "
            "The [architecture](architecture.md#what-child-processes-are-told) says what for.",
        ]
    )


def _hardware_defaults(features: tuple[Feature, ...]) -> list[str]:
    parts = [*_defaults_by_device(features), *_defaults_by_cpu(features)]
    return parts or ["None in this release."]


def _defaults_by_cpu(features: tuple[Feature, ...]) -> list[str]:
    parts = []
    for feature in features:
        for option in feature.options:
            if option.on_with:
                parts.append(
                    f"`{option.variable}`, where it is not set and `{feature.variable}` is on, by "
                    "a level or by its own variable:"
                )
                others = [each for each in feature.options if each.key == option.unless]
                unless = "".join(f", unless `{other.variable}` is on" for other in others)
                rows = [
                    (", ".join(option.on_with), f"on{unless}"),
                    ("any other", _shown(option.default)),
                ]
                parts.append(_table(("CPU", "default"), rows))
    return parts


def _defaults_by_device(features: tuple[Feature, ...]) -> list[str]:
    variables: dict[DeviceDefaults, list[str]] = {}
    for feature in features:
        if feature.default_on is not None:
            variables.setdefault(feature.default_on, []).append(f"`{feature.variable}`")
    parts = []
    for defaults, names in variables.items():
        answers = [*defaults.by_kind.items(), ("any other", defaults.otherwise)]
        rows = [
            (kind, "on" if answer is True else "off", "" if answer is True else str(answer))
            for kind, answer in answers
        ]
        parts.append(
            f"{' and '.join(names)} under `LOONGKIT_ALL`, by the device that the job trains on "
            "(the own variable wins):"
        )
        parts.append(_table(("device", "a level switches it", "why not"), rows))
    return parts


def features_page(features: tuple[Feature, ...]) -> str:
    """Return docs/features/index.md: every feature by group, with needs, notes and guarantee."""
    parts = [
        NOTICE,
        "# Features",
        "Levels: 1 leaves behaviour as it was in essence; 2 needs some experience to configure; 3 "
        "changes how common modules are implemented. `loongkit plan` says which of these would be "
        "on in your environment, and why not for each of the others.",
    ]
    for group in GROUPS:
        parts.append(f"## {GROUP_TITLES[group]}")
        parts += [_entry(f) for f in features if f.group == group]
    return "\n\n".join(parts)


def _entry(feature: Feature) -> str:
    page = page_of(feature)
    lines = [f"Level {feature.level}. {_sentence(feature.summary)}"]
    lines += [_sentence(feature.note)] if feature.note else []
    if feature.guarantee and feature.implemented:
        lines.append(f"Guarantee: {feature.guarantee}.")
    needs = _needs(feature)
    lines += [f"Needs {needs}."] if needs else []
    if page:
        lines.append(f"[More]({page.name}).")
    elif not feature.implemented:
        lines.append("Not in this release.")
    return f"### {feature.name}\n\n`{feature.variable}`. {' '.join(lines)}"


def feature_table(features: tuple[Feature, ...]) -> str:
    """Return the README's table of features."""
    rows = []
    for feature in features:
        page = page_of(feature)
        name = f"`{feature.name}`"
        linked = f"[{name}]({page.relative_to(ROOT)})" if page else name
        needs = _needs(feature)
        rows.append((linked, str(feature.level), feature.summary, needs, _release(feature)))
    also = "; ".join(
        f"`{name}` may be installed as {' or '.join(f'`{d}`' for d in distributions)}"
        for name, distributions in versions.DISTRIBUTIONS.items()
    )
    return _table(("feature", "level", "what", "needs", "in this release"), rows) + f"\n\n{also}."


def sample_summary(remarks: list[str]) -> str:
    """Return a sample of the summary, as a code block."""
    return f"```\n{summary.render(list(SAMPLE), remarks)}```"


def page_of(feature: Feature) -> Path | None:
    """Return the feature's page; one that follows another shares that one's."""
    names = filter(None, (feature.name, feature.follows))
    pages = (FEATURE_PAGES / f"{name}.md" for name in names)
    return next((page for page in pages if page.is_file()), None)


def _type(kind: str) -> str:
    return {"str": "text", "count": "int", "level": "word", "summary": "word"}.get(kind, kind)


def _accepted(variable: str, kind: str) -> str:
    if variable == "LOONGKIT_ALL":
        return "0, 1, 2, 3; above 3 acts as 3, below 0 as 0"
    return settings.ACCEPTED.get(kind, "any text")


def _shown(default: bool | int | str) -> str:
    if isinstance(default, bool):
        return "off" if not default else "on"
    return f"`{default}`" if default != "" else "not set"


def _option_default(option: Option) -> str:
    by_cpu = f"; {BY_HARDWARE.format('CPU')}" if option.on_with else ""
    return _shown(option.default) + by_cpu


def _under_level(feature: Feature) -> str:
    if not feature.implemented:
        return "off"
    if feature.follows:
        return f"as `{feature.follows}`"
    return BY_HARDWARE.format("device") if feature.default_on else "on"


def _release(feature: Feature) -> str:
    return "yes" if feature.implemented else "no"


def _needs(feature: Feature) -> str:
    compiler = (jit.NUMBA,) if feature.compiled else ()
    return ", ".join(f"`{requirement}`" for requirement in (*feature.requires, *compiler))


def _sentence(text: str) -> str:
    is_code = "." in text.split()[0]  # torch.compile stays as it is
    return (text if is_code else text[0].upper() + text[1:]) + "."


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def between_markers(text: str, name: str, content: str) -> str:
    """Return the text with what stands between a pair of markers replaced.

    Raises:
        ValueError: the pair of markers is not there once.

    """
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page must hold {begin} and {end} once each")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{content}\n{end}{tail}"


def derived() -> dict[Path, str]:
    """Return the text of every derived file, by its path."""
    features = catalog.load_all()
    absent = [f"{f.name}: {plan.NOT_IN_THIS_RELEASE}" for f in features if not f.implemented]
    in_readme = {"features": feature_table(features), "sample": sample_summary([])}
    in_guide = {"sample": sample_summary(absent[:1])}
    return {
        build_index.TARGET: build_index.render(),
        ROOT / "README.md": _with_parts(ROOT / "README.md", in_readme),
        ROOT / "docs" / "guide.md": _with_parts(ROOT / "docs" / "guide.md", in_guide),
        ROOT / "docs" / "settings.md": settings_page(features) + "\n",
        FEATURE_PAGES / "index.md": features_page(features) + "\n",
    }


def _with_parts(page: Path, parts: dict[str, str]) -> str:
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = between_markers(text, name, content)
    return text


def main() -> int:
    """Write what is out of date, or name it and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    check = parser.parse_args().check
    drifted = [
        (path, text)
        for path, text in derived().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in drifted:
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run {COMMAND}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
