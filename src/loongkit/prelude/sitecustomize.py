"""Loongkit's entry at interpreter start-up: arms Loongkit, then runs the next sitecustomize.

This folder stands on PYTHONPATH, so everything in it would be importable in every user program:
it holds this one file. Any Python may run it (a Python 2 child inherits PYTHONPATH too): it must
parse everywhere, and stay silent where Loongkit can't run.
"""

import os
import sys

_INTERNAL = ("LOONGKIT_JOB_VERSION", "LOONGKIT_JOB_WARNED")


def _is_asked():
    if sys.version_info < (3, 10) or sys.implementation.name != "cpython":
        return False
    for name in os.environ:
        if name.startswith("LOONGKIT_") and name not in _INTERNAL:
            return True
    return False


def _activate():
    """Load Loongkit from beside this file, whatever else this interpreter has installed."""
    if "loongkit" not in sys.modules:
        # Only our package: its parent folder is another environment's site-packages when a
        # launcher of one environment starts an interpreter of another.
        finder = sys.modules["_frozen_importlib_external"].PathFinder
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
        spec = finder.find_spec("loongkit", [source])
        if spec is None or spec.loader is None:
            return  # uninstalled while this folder was still on PYTHONPATH
        bootstrap = sys.modules["_frozen_importlib"]
        module = bootstrap.module_from_spec(spec)
        sys.modules["loongkit"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop("loongkit", None)
            raise
    from loongkit.activation import guard

    guard.activate("prelude")


def _arm():
    try:
        _activate()
    except KeyboardInterrupt:
        raise
    except BaseException:
        error = sys.exc_info()[1]
        if type(error).__name__ == "StrictError":
            # Python prints an Exception of this file and goes on; SystemExit alone stops the job.
            sys.stderr.write("%s\n" % error)
            sys.stderr.flush()
            os._exit(1)


def _own_position(path):
    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    for position, entry in enumerate(path):
        if isinstance(entry, str) and entry and os.path.realpath(entry) == here:
            return position
    return -1


def _chain():
    """Run the sitecustomize that Python would have found had this folder not been on the path.

    Nothing here is guarded: its success, its errors, even its SystemExit look as without us.
    """
    position = _own_position(sys.path)
    rest = sys.path[position + 1 :]
    own_file = os.path.realpath(os.path.splitext(os.path.abspath(__file__))[0] + ".py")
    while True:
        spec = _find_next(rest)
        if spec is None or spec.loader is None:
            return
        if not spec.origin or os.path.realpath(spec.origin) != own_file:
            break
        # This folder once more, under another name: go on behind it.
        folder = os.path.dirname(spec.origin)
        rest = [entry for entry in rest if entry != folder]
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _find_next(rest):
    path_finder = sys.modules["_frozen_importlib_external"].PathFinder
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        spec = find_spec("sitecustomize", rest if finder is path_finder else None, None)
        if spec is not None:
            return spec
    return None


def _chain_python2():
    import imp

    rest = sys.path[_own_position(sys.path) + 1 :]
    try:
        found = imp.find_module("sitecustomize", rest)
    except ImportError:
        return
    try:
        imp.load_module("sitecustomize", *found)
    finally:
        if found[0]:
            found[0].close()


if _is_asked():
    _arm()
if sys.version_info[0] == 2:
    _chain_python2()
else:
    _chain()
