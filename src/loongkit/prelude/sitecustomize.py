"""Loongkit's entry at interpreter start-up: arms Loongkit, then runs the next sitecustomize.

This folder stands on PYTHONPATH, so everything in it would be importable in every user program:
it holds this one file. Any Python may run it (a Python 2 child inherits PYTHONPATH too): it must
parse everywhere, and stay silent where Loongkit can't run.
"""

import os
import sys

_OURS = "LOONGKIT_"
_INTERNAL = "LOONGKIT_JOB_"


def _is_asked():
    if sys.version_info < (3, 10) or sys.implementation.name != "cpython":
        return False
    for name in os.environ:
        if name.startswith(_OURS) and not name.startswith(_INTERNAL):
            return True
    return False


def _activate():
    """Load Loongkit from beside this file, whatever else this interpreter has installed."""
    if "loongkit.activation.start" in sys.modules:
        return  # a second prelude on the path, or one that was chained back to us
    theirs = ""
    if "loongkit" not in sys.modules:
        # Only our package: its parent folder is another environment's site-packages when a
        # launcher of one environment starts an interpreter of another.
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
        spec = finder.find_spec("loongkit", [source])
        if spec is None or spec.loader is None:
            return  # uninstalled while this folder was still on PYTHONPATH
        theirs = _their_own(finder)
        sys.modules["_frozen_importlib"]._load(spec)
    from loongkit.activation import guard

    if not theirs:
        guard.activate("prelude")
        return
    guard.make_way(theirs)
    for name in list(sys.modules):
        if name.partition(".")[0] == "loongkit":
            del sys.modules[name]


def _their_own(finder):
    """Return the file of what else is called loongkit, if the job would import that without us."""
    entries = list(sys.path)
    if not getattr(sys.flags, "safe_path", False):
        # Python puts it on the path only later: a script's folder, else the working directory.
        first = getattr(sys, "argv", None) or [""]
        script = "" if first[0] in ("-c", "-m", "-") else first[0]
        folder = os.path.isdir(script) or not script
        entries.insert(0, script if folder else os.path.dirname(os.path.realpath(script)))
    spec = finder.find_spec("loongkit", entries)
    if spec is None or spec.loader is None or not spec.origin:
        return ""  # nothing, or a folder that is no package
    marker = os.path.join(os.path.dirname(spec.origin), "activation", "start.py")
    return "" if os.path.exists(marker) else os.path.normpath(spec.origin)


def _arm():
    try:
        _activate()
    except KeyboardInterrupt:
        raise
    except BaseException:
        error = sys.exc_info()[1]
        if type(error).__name__ == "StrictError":
            # Python prints an Exception of this file and goes on, so the job would run after all.
            if sys.stderr is not None:
                sys.stderr.write("%s\n" % error)
                sys.stderr.flush()
            os._exit(1)


def _real_folder(path):
    return os.path.realpath(os.path.dirname(os.path.abspath(path)))


def _entries_behind_us():
    here = _real_folder(__file__)
    for position, entry in enumerate(sys.path):
        if isinstance(entry, str) and entry and os.path.realpath(entry) == here:
            return sys.path[position + 1 :]
    return list(sys.path)


def _other_folders(entries):
    """Leave out this folder where it stands on the path once more, perhaps by another name."""
    here = _real_folder(__file__)
    return [e for e in entries if not isinstance(e, str) or os.path.realpath(e) != here]


def _chain():
    """Run the sitecustomize that Python would have found had this folder not been on the path.

    Nothing here is guarded: its success, its errors, even its SystemExit look as without us.
    """
    entries = _entries_behind_us()
    spec = _find_next(entries)
    if _is_this_file(spec):
        spec = _find_next(_other_folders(entries))
    if spec is None or spec.loader is None or _is_this_file(spec):
        return
    # The import system's own routine: it enters the module under the name that Python looks for,
    # in our place, and leaves none behind that fails. Its lock is held by this thread already.
    sys.modules["_frozen_importlib"]._load(spec)


def _is_this_file(spec):
    if spec is None or not spec.origin:
        return False
    name = os.path.splitext(os.path.basename(spec.origin))[0]
    return name == "sitecustomize" and _real_folder(spec.origin) == _real_folder(__file__)


def _find_next(entries):
    path_finder = sys.modules["_frozen_importlib_external"].PathFinder
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        spec = find_spec("sitecustomize", entries if finder is path_finder else None, None)
        if spec is not None:
            return spec
    return None


def _leave_no_bytecode():
    """Remove what Python 2 compiles into this folder.

    It lies beside the source there, and once Loongkit is uninstalled Python 3 would take it for a
    module of its own and complain.
    """
    source = os.path.splitext(os.path.abspath(__file__))[0] + ".py"
    for compiled in (source + "c", source + "o"):
        try:
            os.unlink(compiled)
        except OSError:
            pass


def _chain_by_importers():
    """Do the same where the import system has no specs yet."""
    import pkgutil

    for entry in _other_folders(_entries_behind_us()):
        importer = pkgutil.get_importer(entry)
        loader = importer and importer.find_module("sitecustomize")
        if loader:
            # Else theirs would run inside our module. Python 2 empties a module nobody holds.
            ours = sys.modules.pop("sitecustomize", None)
            loader.load_module("sitecustomize")
            del ours
            return


if _is_asked():
    _arm()
if sys.version_info[0] == 2:
    _leave_no_bytecode()
if sys.version_info < (3, 5):
    _chain_by_importers()
else:
    _chain()
