"""Plain folders that stand in for control groups, with the kernel's rules for those we use.

The rules are those that were seen on Linux 6.1 and 6.18, and in the kernel's documentation of both
generations: what a group needs before it takes processes, when controllers may be handed on, what
makes a group threaded, and which error each breach gives.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from loongkit.activation import cpulists
from loongkit.numa.cgroups.operations import Operations

MOUNT = "sys/fs/cgroup"
FIRST = "rw,nosuid - cgroup cgroup rw,"
#: What a kernel may answer to any of the calls.
ERRORS = (
    *("EROFS", "EACCES", "EPERM", "EBUSY", "ENOENT"),
    *("EOPNOTSUPP", "EINVAL", "ENOSPC", "ERANGE"),
)


def failure(number: int, path: str = "") -> OSError:
    return OSError(number, os.strerror(number), *([path] if path else []))


class Kernel(Operations):
    """A host: ``first`` and ``second`` mount hierarchies and put processes into a group of theirs.

    ``refuse`` has a call fail; ``log`` holds what was changed, in order.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.root = folder
        self.log: list[str] = []
        self.refused: list[tuple[str, str, int, int]] = []
        self.mounts: list[str] = []  # by place, without the leading slash
        self.seconds: set[str] = set()
        (folder / "proc/self").mkdir(parents=True)
        self._mountinfo = self._controllers = ""
        self._paths: dict[str, str] = {}
        self._pid = os.getpid()

    # --- the host

    def first(self, controllers: str, own: str = "", *pids: int, seen_from: str = "/") -> str:
        """Mount a hierarchy of the first generation; return this process's group in it."""
        mount = f"{MOUNT}/{controllers}"
        self._mountinfo += f"9 9 0:9 {seen_from} /{mount} {FIRST}{controllers}\n"
        return self._mount(mount, f"9:{controllers}:", own, pids, seen_from)

    def second(
        self, own: str = "", *pids: int, on: str = "cpuset cpu memory pids", seen_from: str = "/"
    ) -> str:
        """Mount the second generation; the controllers ``on`` reach this process's group."""
        mount = f"{MOUNT}/unified"
        self._mountinfo += f"9 9 0:9 {seen_from} /{mount} rw - cgroup2 cgroup2 rw\n"
        self.seconds.add(mount)
        self._controllers = on
        return self._mount(mount, "0::", own, pids, seen_from)

    def _mount(self, mount: str, line: str, own: str, pids: tuple[int, ...], seen_from: str) -> str:
        self.mounts.append(mount)
        at = self.root / mount
        at.mkdir(parents=True)
        self._populate(mount)
        path = mount
        for name in filter(None, own.split("/")):
            path += f"/{name}"
            (self.root / path).mkdir()
            self._populate(path)
        if seen_from != "/":  # a container: what is mounted is no root to the kernel
            self._put(f"{mount}/cgroup.type", "domain")
        for pid in pids or (os.getpid(),):
            self._join(path, pid)
        self._paths[mount] = line + (seen_from if seen_from != "/" else "")
        self._tell()
        (self.root / "proc/self/mountinfo").write_text(self._mountinfo)
        self.log.clear()
        return path

    def _tell(self) -> None:
        """Write /proc/self/cgroup."""
        lines = []
        for mount, line in self._paths.items():
            own = self.where(self._pid, mount).removeprefix(mount)
            lines.append(f"{line}{own}" if own or not line.endswith(":") else f"{line}/")
        (self.root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")

    def become(self, pid: int) -> None:
        """Have /proc/self be another process."""
        self._pid = pid
        self._tell()

    def mount_of(self, folder: str) -> str:
        """Return the hierarchy that a group is in."""
        return next(m for m in self.mounts if folder == m or folder.startswith(m + "/"))

    def where(self, pid: int, mount: str) -> str:
        """Return the group of a process."""
        for folder in (self.root / mount, *(self.root / mount).rglob("*")):
            if folder.is_dir() and str(pid) in (folder / "cgroup.threads").read_text().split():
                return str(folder.relative_to(self.root))
        return mount

    def groups(self) -> list[str]:
        """Return all groups, without the place where they are mounted."""
        return sorted(
            str(folder.relative_to(self.root / mount))
            for mount in self.mounts
            for folder in (self.root / mount).rglob("*")
            if folder.is_dir()
        )

    def child_of(self, parent: int, pid: int) -> None:
        """Have /proc tell that a process is another's child."""
        at = self.root / f"proc/{pid}"
        at.mkdir()
        (at / "stat").write_text(f"{pid} (a (name) b) S {parent} 1 1 0")

    def refuse(self, call: str, end: str, number: int, times: int = 1 << 30) -> None:
        """Have ``call`` fail for paths that end so."""
        self.refused.append((call, end, number, times))

    def _note(self, call: str, path: str, text: str = "") -> None:
        for position, (kind, end, number, times) in enumerate(self.refused):
            if kind == call and path.endswith(end) and times:
                self.refused[position] = (kind, end, number, times - 1)
                raise failure(number, f"/{path}")
        self.log.append(f"{call} {path} {text}".rstrip())

    # --- the calls

    def make(self, folder: str) -> bool:
        self._note("make", folder)
        if not super().make(folder):
            return False
        self._populate(folder)
        return True

    def remove(self, folder: str) -> None:
        self._note("remove", folder)
        if not (self.root / folder).is_dir():
            raise failure(errno.ENOENT, folder)
        if self._get(f"{folder}/cgroup.threads") or self.groups_in(folder):
            raise failure(errno.EBUSY, folder)
        shutil.rmtree(self.root / folder)
        self._retype(folder.rpartition("/")[0])

    def read(self, path: str) -> str:
        if path.endswith("/cgroup.procs") and self._type(path.rpartition("/")[0]) == "threaded":
            raise failure(errno.EOPNOTSUPP, path)
        return super().read(path)

    def write(self, path: str, text: str) -> None:
        self._note("write", path, text)
        folder, _, name = path.rpartition("/")
        if not (self.root / path).is_file():
            raise failure(errno.ENOENT, path)
        if name == "cgroup.procs":
            self._attach(folder, int(text))
        elif name == "cgroup.type":
            self._thread(folder)
        elif name == "cgroup.subtree_control":
            self._hand_on(folder, text)
        else:
            self._limit(folder, name, text)

    # --- the rules

    def _get(self, path: str) -> str:
        at = self.root / path
        return at.read_text().strip() if at.exists() else ""

    def _put(self, path: str, text: str) -> None:
        (self.root / path).write_text(text + "\n")

    def _is_second(self, folder: str) -> bool:
        return self.mount_of(folder) in self.seconds

    def _type(self, folder: str) -> str:
        return self._get(f"{folder}/cgroup.type")

    def _populate(self, folder: str) -> None:
        """Make the files of a new group."""
        is_root, above = folder in self.mounts, folder.rpartition("/")[0]
        for name in ("cgroup.procs", "cgroup.threads"):
            self._put(f"{folder}/{name}", "")
        if not self._is_second(folder):
            if "/cpuset" in folder:
                for kind, all_of_them in (("cpus", "0-7"), ("mems", "0-1")):
                    text = all_of_them if "loongkit." not in folder else ""
                    self._put(f"{folder}/cpuset.{kind}", text)
                    self._put(f"{folder}/cpuset.effective_{kind}", text)
            return
        ours = "loongkit." in folder
        on = self._get(f"{above}/cgroup.subtree_control") if ours else self._controllers
        self._put(f"{folder}/cgroup.controllers", on)
        self._put(f"{folder}/cgroup.subtree_control", "")
        if not is_root:
            invalid = ours and self._type(above) == "threaded"
            self._put(f"{folder}/cgroup.type", "domain invalid" if invalid else "domain")
            self._put(f"{folder}/cgroup.events", "populated 0\nfrozen 0")
        self._add_files(folder, is_root)

    def _add_files(self, folder: str, is_root: bool = False) -> None:
        if "cpuset" not in self._get(f"{folder}/cgroup.controllers").split():
            return
        above = folder.rpartition("/")[0]
        for kind, all_of_them in (("cpus", "0-7"), ("mems", "0-1")):
            text = self._get(f"{above}/cpuset.{kind}.effective") or all_of_them
            if not is_root:
                self._put(f"{folder}/cpuset.{kind}", "")
            self._put(f"{folder}/cpuset.{kind}.effective", text)

    def _attach(self, folder: str, pid: int) -> None:
        if self._type(folder) == "domain invalid":
            raise failure(errno.EOPNOTSUPP)
        if self._is_second(folder):
            hands_on = self._get(f"{folder}/cgroup.subtree_control")
            if hands_on and self._type(folder) == "domain":
                raise failure(errno.EBUSY)  # only groups without processes hand controllers on
        elif "/cpuset" in folder:
            for kind in ("cpus", "mems"):
                if not self._get(f"{folder}/cpuset.{kind}"):
                    raise failure(errno.ENOSPC)
        self._join(folder, pid)
        self._tell()

    def _join(self, folder: str, pid: int) -> None:
        mount = self.mount_of(folder)
        for other in (self.root / mount, *(self.root / mount).rglob("*")):
            if not other.is_dir():
                continue
            at = str(other.relative_to(self.root))
            pids = [word for word in self._get(f"{at}/cgroup.threads").split() if word != str(pid)]
            if at == folder:
                pids.append(str(pid))
            for name in ("cgroup.procs", "cgroup.threads"):
                self._put(f"{at}/{name}", "\n".join(pids))
        for other in (self.root / mount).rglob("cgroup.events"):
            inside = "".join(each.read_text() for each in other.parent.rglob("cgroup.threads"))
            other.write_text(f"populated {int(bool(inside.split()))}\nfrozen 0\n")

    def _thread(self, folder: str) -> None:
        above = folder.rpartition("/")[0]
        if "populated 1" in self._get(f"{folder}/cgroup.events"):
            raise failure(errno.EOPNOTSUPP)
        for name in self.groups_in(above):
            other = f"{above}/{name}"
            is_populated = "populated 1" in self._get(f"{other}/cgroup.events")
            if self._type(other) == "domain" and is_populated:
                raise failure(errno.EOPNOTSUPP)
        self._put(f"{folder}/cgroup.type", "threaded")
        self._retype(above)

    def _retype(self, folder: str) -> None:
        """A group with threaded ones below it, or that hands on with processes, is their root."""
        if self._type(folder) not in ("domain", "domain threaded"):
            return
        below = any(self._type(f"{folder}/{name}") == "threaded" for name in self.groups_in(folder))
        hands_on = self._get(f"{folder}/cgroup.subtree_control")
        is_root = below or (hands_on and self._get(f"{folder}/cgroup.threads"))
        self._put(f"{folder}/cgroup.type", "domain threaded" if is_root else "domain")

    def _hand_on(self, folder: str, text: str) -> None:
        on = self._get(f"{folder}/cgroup.subtree_control").split()
        for word in text.split():
            name = word[1:]
            if name not in self._get(f"{folder}/cgroup.controllers").split():
                raise failure(errno.ENOENT)
            busy = bool(self._get(f"{folder}/cgroup.threads")) and self._type(folder) == "domain"
            if word[0] == "+" and busy:
                raise failure(errno.EBUSY)
            on = [*on, name] if word[0] == "+" else [other for other in on if other != name]
        self._put(f"{folder}/cgroup.subtree_control", " ".join(on))
        for name in self.groups_in(folder):
            self._put(f"{folder}/{name}/cgroup.controllers", " ".join(on))
            self._add_files(f"{folder}/{name}")
        self._retype(folder)

    def _limit(self, folder: str, name: str, text: str) -> None:
        kind = name.partition(".")[2]
        effective = f"cpuset.{kind}.effective"
        if not self._is_second(folder):
            effective = f"cpuset.effective_{kind}"
        above = self._get(f"{folder.rpartition('/')[0]}/{effective}")
        wanted, allowed = cpulists.parse(text), cpulists.parse(above)
        if wanted and max(wanted) > 7:
            raise failure(errno.ERANGE)
        if not self._is_second(folder) and not wanted <= allowed:
            raise failure(errno.EACCES)
        self._put(f"{folder}/{name}", text)
        self._put(f"{folder}/{effective}", cpulists.format(wanted & allowed or allowed))
