"""Which accelerator each local rank computes on: guessed before CUDA is initialised, then told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from numa_hosts import accelerator, address, host

from loongkit.numa import visible_devices
from loongkit.numa.devices import Identity, Live, confirm, guess, read_live
from loongkit.numa.plan import plan
from loongkit.numa.records import Machine, Request

CVD = "CUDA_VISIBLE_DEVICES"
INDEX = "LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX"


def machine(gpus: int = 4, uuids: bool = True) -> Machine:
    return host(["0-7", "8-15"], [i * 2 // gpus for i in range(gpus)], uuids=uuids)


def asked(
    environ: dict[str, str],
    rank: int = 0,
    ranks: int = 1,
    on: Machine | None = None,
    torch: tuple[int, ...] | None = (2, 5, 0),
    allow_index: bool = False,
) -> Identity:
    return guess(
        environ,
        on or machine(),
        local_rank=rank,
        ranks=ranks,
        torch=torch,
        allow_index=allow_index,
    )


def indices(identity: Identity) -> list[int | str]:
    """Devices by index of the host, "" where not known."""
    known: dict[str, int | str] = {address(i): i for i in range(16)}
    return [known.get(device, device) for device in identity.devices]


def reasons(identity: Identity) -> list[str]:
    return [code for code, _text in identity.reasons]


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-aaaa"


class TestVisibleDevices:
    """What a text chooses of four devices; None: can't be known."""

    @pytest.mark.parametrize(
        ("text", "chosen"),
        [
            ("0,1,2,3", [0, 1, 2, 3]),
            ("3,2", [3, 2]),
            ("3, 1 ,0", [3, 1, 0]),
            ("", []),
            (" ", []),
            ("-1", []),
            ("2,-1,3", [2]),
            ("0,4,1", [0]),
            ("4", []),
            ("0,x,1", [0]),
            ("NoDevFiles", []),
            ("1gpu,2ampere", [1, 2]),
            ("+1", [1]),
            ("1,1", []),
            ("0,1,0", []),
            ("0,4,0", [0]),
            ("99999999999999999999", []),
            ("²", []),
            ("0,", [0]),
            (uuid(2), [2]),
            (f"{uuid(3)},{uuid(1)}", [3, 1]),
            ("GPU-00000002,GPU-00000000", [2, 0]),
            ("GPU-00000002-AAAA", [2]),
            ("GPU-0", []),  # could be any
            ("GPU-7", []),
            ("GPU-00000001,GPU-7,GPU-00000002", [1]),
            ("GPU-00000001,GPU-00000001-aaaa", []),
            ("GPU-00000001,2", [1]),
            ("2,GPU-00000001", [2]),
            (f"MIG-{uuid(2)}/1/0", [2]),
            (f"MIG-{uuid(2)}/1/0,MIG-{uuid(2)}/2/0", [2, 2]),
            (f"MIG-{uuid(2)}/1/0,MIG-{uuid(2)}/1/0", []),
            ("MIG-00000002-aaaa", None),
        ],
    )
    def test_forms(self, text, chosen) -> None:
        expected = None if chosen is None else tuple(address(i) for i in chosen)
        host = machine()
        table = visible_devices.table(host, "nvidia")
        assert visible_devices.chosen(text, table, host.uuids) == expected

    def test_uuids_need_the_drivers_files(self) -> None:
        table = [address(0), address(1)]
        assert visible_devices.chosen(uuid(1), table, {}) is None
        assert visible_devices.chosen(uuid(1), table, {address(1): uuid(1)}) == (address(1),)

    def test_a_part_of_the_only_device(self) -> None:
        assert visible_devices.chosen("MIG-1234", [address(0)], {}) == (address(0),)

    def test_a_container_has_driver_files_for_its_own_devices_only(self) -> None:
        on = machine()
        on.uuids = {address(i): uuid(i) for i in (2, 3)}
        assert indices(asked({}, 0, 2, on)) == [2, 3]
        assert indices(asked({CVD: "1"}, 0, 1, on)) == [3]


class TestGuess:
    def test_rank_i_computes_on_visible_device_i(self) -> None:
        for rank in range(4):
            assert indices(asked({}, rank, 4)) == [0, 1, 2, 3]
            assert indices(asked({CVD: "3,1,0,2"}, rank, 4)) == [3, 1, 0, 2]
        assert indices(asked({CVD: "3,1,0,2"}, 1, 2)) == [3, 1]
        assert indices(asked({CVD: uuid(2)}, 0, 1)) == [2]

    def test_a_process_without_a_local_rank_may_use_all_it_sees(self) -> None:
        assert indices(asked({}, -1)) == [0, 1, 2, 3]
        assert indices(asked({CVD: "3,1"}, -1)) == [3, 1]

    def test_a_full_list_in_every_rank(self) -> None:
        """Ray with RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES (NVIDIA-NeMo/RL#2613)."""
        assert indices(asked({CVD: "3,2,1,0"}, 1, 2)) == [3, 2]

    def test_one_device_for_each_rank(self) -> None:
        for rank in range(4):
            assert indices(asked({CVD: str(3 - rank)}, rank, 4))[rank] == 3 - rank
            assert set(indices(asked({CVD: str(3 - rank)}, rank, 4))) == {0, 1, 2, 3}

    def test_one_device_for_each_of_fewer_ranks_leaves_the_peers_unknown(self) -> None:
        assert indices(asked({CVD: "3"}, 1, 2)) == ["", 3]
        assert indices(asked({CVD: "2,3"}, 2, 3)) == ["", "", 2]

    def test_one_device_under_torchrun(self) -> None:
        torchrun = {"TORCHELASTIC_RUN_ID": "none"}
        # its own variable is that of all ranks, which share what it names,
        assert indices(asked({CVD: "0", **torchrun}, 2, 4)) == [0] * 4
        # with virtual local ranks every rank is 0 and sees its own,
        assert indices(asked({CVD: "2", **torchrun}, 0, 4))[0] == 2
        # and a script in between gives each rank the device of its number.
        assert indices(asked({CVD: "2", **torchrun}, 2, 4)) == [0, 1, 2, 3]

    def test_more_ranks_than_devices(self) -> None:
        for rank in range(8):
            found = asked({}, rank, 8)
            assert indices(found) == [0, 1, 2, 3] * 2 and reasons(found) == ["ranks>gpus"]
        two = machine(2)
        assert indices(asked({CVD: "1,0"}, 2, 3, two)) == [1, 0, 1]
        assert indices(asked({CVD: "1,0"}, 0, 3, two)) == [1, 0, 1]

    @pytest.mark.parametrize("text", ["", "-1", "NoDevFiles", "0,0"])
    def test_no_device_is_visible(self, text) -> None:
        found = asked({CVD: text}, 0, 2)
        assert found.devices == () and reasons(found) == ["no-gpu"]
        assert CVD in found.reasons[0][1]

    def test_no_device_at_all(self) -> None:
        assert asked({}, 0, 2, host(["0-7", "8-15"], [])).devices == ()

    @pytest.mark.parametrize(
        ("torch", "allow_index", "known"),
        [
            ((2, 5, 0), False, True),
            ((2, 10), False, True),
            ((2, 5), False, True),
            ((2, 4, 9), False, False),
            ((2, 4, 9), True, True),
            ((1, 13), True, True),
            ((1, 13), False, False),
            (None, False, False),
            (None, True, True),
        ],
    )
    def test_a_torch_without_identities_needs_allow_index(self, torch, allow_index, known) -> None:
        found = asked({}, 0, 2, torch=torch, allow_index=allow_index)
        assert indices(found) == ([0, 1] if known else ["", ""])
        if not known:
            assert reasons(found) == ["no-device-identity"] and INDEX in found.reasons[0][1]
        assert not found.warnings

    def test_allow_index_warns_where_somebody_chose(self) -> None:
        old = {"torch": (2, 4, 1), "allow_index": True}
        for environ in ({CVD: "1,0"}, {"NVIDIA_VISIBLE_DEVICES": "1,0"}):
            found = asked(environ, 0, 2, **old)  # type: ignore[arg-type]
            assert all(found.devices) and len(found.warnings) == 1
            assert next(iter(environ)) in found.warnings[0]
        assert indices(asked({CVD: "1,0"}, 0, 2, **old)) == [1, 0]  # type: ignore[arg-type]
        # all of a container's four devices, or whatever there is
        for text in ("all", "none", "void", "", "0,1,2,3"):
            assert not asked({"NVIDIA_VISIBLE_DEVICES": text}, 0, 2, **old).warnings  # type: ignore[arg-type]

    def test_devices_of_several_models_are_counted_by_speed(self) -> None:
        on = machine()
        on.accelerators = (*on.accelerators[:3], accelerator(3, 1, name="T4"))
        found = asked({}, 0, 4, on)
        assert indices(found) == [""] * 4 and "several models" in found.reasons[0][1]
        assert indices(asked({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 0, 4, on)) == [0, 1, 2, 3]
        assert indices(asked({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 0, 4, on)) == [""] * 4
        assert indices(asked({}, 0, 4, on, allow_index=True)) == [0, 1, 2, 3]
        assert indices(asked({CVD: uuid(3)}, 0, 1, on)) == [3]

    def test_slurm_may_count_within_a_tasks_devices(self) -> None:
        slurm = {"SLURM_JOB_ID": "7"}
        assert indices(asked({CVD: "0", **slurm}, 1, 4)) == [""] * 4
        assert indices(asked({CVD: "0,1", **slurm}, 1, 2)) == [""] * 2
        assert indices(asked({CVD: "0,1,2,3", **slurm}, 1, 4)) == [0, 1, 2, 3]
        assert indices(asked({CVD: uuid(2), **slurm}, 0, 1)) == [2]

    def test_a_container_that_shows_all_and_was_given_some(self) -> None:
        found = asked({"NVIDIA_VISIBLE_DEVICES": "2,3"}, 0, 2)
        assert indices(found) == ["", ""] and "NVIDIA_VISIBLE_DEVICES" in found.reasons[0][1]

    def test_mig_without_a_known_parent_waits_for_the_device(self) -> None:
        found = asked({CVD: "MIG-1234"}, 0, 1, allow_index=True)
        assert indices(found) == [""] and reasons(found) == ["no-device-identity"]

    def test_other_vendors_wait_for_the_device_or_go_by_index(self) -> None:
        on = machine()
        on.accelerators = tuple(accelerator(i, i // 2, kind="ascend") for i in range(4))
        assert indices(asked({}, 0, 4, on)) == [""] * 4
        assert indices(asked({}, 0, 4, on, allow_index=True)) == [0, 1, 2, 3]
        chosen = {"ASCEND_RT_VISIBLE_DEVICES": "2,3", CVD: "0"}
        found = asked(chosen, 0, 2, on, allow_index=True)
        assert indices(found) == [2, 3] and "ASCEND_RT_VISIBLE_DEVICES" in found.warnings[0]


class Module:
    """A device module as torch.cuda: devices by index, each with what its torch tells."""

    def __init__(self, *properties: Any, current: int = 0, initialised: bool = True) -> None:
        self._properties = properties
        self._current = current
        self._initialised = initialised

    def is_initialized(self) -> bool:
        return self._initialised

    def device_count(self) -> int:
        assert self._initialised, "asking would initialise the device"
        return len(self._properties)

    def current_device(self) -> int:
        assert self._initialised
        return self._current

    def get_device_properties(self, index: int) -> Any:
        assert self._initialised
        return self._properties[index]


def pci(index: int) -> SimpleNamespace:
    """The properties that torch 2.8 gives."""
    return SimpleNamespace(
        pci_domain_id=0, pci_bus_id=16 + index, pci_device_id=0, uuid="of another world"
    )


def by_uuid(index: int) -> SimpleNamespace:
    """Those of torch 2.5, whose uuids lack the driver's prefix."""
    return SimpleNamespace(uuid=uuid(index).removeprefix("GPU-").upper())


class TestLive:
    def test_nothing_is_asked_before_the_device_is_in_use(self) -> None:
        assert read_live(Module(pci(0), initialised=False), machine()) is None

    def test_it_may_be_asked_by_a_call_that_waits_for_the_initialisation(self) -> None:
        """torch.cuda runs such calls before it counts as initialised."""

        class Starting(Module):
            _tls = SimpleNamespace(is_initializing=True)

            def is_initialized(self) -> bool:
                return False

        found = read_live(Starting(pci(2)), machine())
        assert found is not None and found.addresses == (address(2),)
        Starting._tls = SimpleNamespace()
        assert read_live(Starting(pci(2)), machine()) is None

    def test_device_0_may_be_one_that_nobody_chose(self) -> None:
        for current, index, expected in [(0, None, None), (2, None, 2), (0, 0, 0), (2, 1, 1)]:
            found = read_live(Module(*map(pci, range(4)), current=current), machine(), index)
            assert found is not None and found.current == expected

    @pytest.mark.parametrize("properties", [pci, by_uuid])
    def test_pci_ids_and_uuids(self, properties) -> None:
        found = read_live(Module(properties(3), properties(1), current=1), machine())
        assert found is not None
        assert (found.current, found.addresses) == (1, (address(3), address(1)))

    def test_the_function_of_a_pci_address_is_the_devices(self) -> None:
        on = machine(2)
        on.accelerators[1].pci = "10000:11:00.1"
        large = SimpleNamespace(pci_domain_id=0x10000, pci_bus_id=17, pci_device_id=0)
        found = read_live(Module(large), on)
        assert found is not None and found.addresses == ("10000:11:00.1",)

    @pytest.mark.parametrize(
        "properties",
        [SimpleNamespace(), SimpleNamespace(uuid=""), SimpleNamespace(uuid="MIG-7"), pci(9), None],
    )
    def test_a_device_that_does_not_say_who_it_is(self, properties) -> None:
        found = read_live(Module(properties), machine())
        assert found is not None and found.addresses == ("",)

    def test_errors_of_the_device_are_no_identity(self) -> None:
        class Broken(Module):
            def get_device_properties(self, index: int) -> Any:
                raise RuntimeError("CUDA error: device lost")

        assert read_live(Broken(None), machine()) is None
        assert read_live(object(), machine()) is None


def confirmed(guessed: Identity, rank: int, ranks: int, *visible: int, current: int | None = None):
    live = Live(rank if current is None else current, tuple(address(i) for i in visible))
    return confirm(live, machine(), guessed, local_rank=rank, ranks=ranks)


class TestConfirm:
    unknown = Identity(("",) * 4, (), (("no-device-identity", "text"),))

    def test_a_right_guess_stands(self) -> None:
        guessed = asked({}, 2, 4)
        assert confirmed(guessed, 2, 4, 0, 1, 2, 3) is guessed

    def test_before_a_device_is_chosen_that_of_the_local_rank_counts(self) -> None:
        on = machine()
        for rank in range(4):
            live = Live(None, tuple(address(i) for i in (3, 2, 1, 0)))
            guessed = asked({CVD: "3,2,1,0"}, rank, 4)
            assert confirm(live, on, guessed, local_rank=rank, ranks=4) is guessed
            found = confirm(live, on, self.unknown, local_rank=rank, ranks=4)
            assert indices(found) == [3, 2, 1, 0]
        nothing = confirm(Live(None, ()), on, self.unknown, local_rank=1, ranks=4)
        assert nothing is self.unknown

    def test_a_wrong_guess_is_replaced_with_a_warning(self) -> None:
        guessed = asked({}, 1, 4)
        found = confirmed(guessed, 1, 4, 3, 2, 1, 0)
        assert indices(found) == [3, 2, 1, 0]
        assert len(found.warnings) == 1 and address(2) in found.warnings[0]

    def test_a_script_that_chose_another_device_leaves_the_peers_unknown(self) -> None:
        guessed = asked({}, 1, 4)
        assert indices(confirmed(guessed, 1, 4, 0, 1, 2, 3, current=2)) == ["", 2, "", ""]

    def test_what_could_not_be_guessed_is_no_surprise(self) -> None:
        found = confirmed(self.unknown, 1, 4, 3, 2, 1, 0)
        assert indices(found) == [3, 2, 1, 0] and not found.warnings

    def test_one_visible_device_for_each_rank(self) -> None:
        found = confirmed(self.unknown, 1, 4, 2, current=0)
        assert indices(found)[1] == 2 and set(indices(found)) == {0, 1, 2, 3}
        two = Identity(("", ""))
        assert indices(confirmed(two, 1, 2, 2, current=0)) == ["", 2]

    def test_parts_of_one_device_share_it(self) -> None:
        found = confirmed(self.unknown, 1, 4, 2, 2, 2, 2)
        assert indices(found) == [2] * 4

    def test_a_silent_device_counts_by_its_index(self) -> None:
        guessed = asked({CVD: "3,1"}, 0, 2, torch=(2, 4), allow_index=True)
        same = confirm(Live(0, ("", "")), machine(), guessed, local_rank=0, ranks=2)
        assert same is guessed
        other = confirm(Live(1, ("", "")), machine(), guessed, local_rank=0, ranks=2)
        assert indices(other) == [1, ""]
        nothing = confirm(Live(0, ("",)), machine(), self.unknown, local_rank=0, ranks=4)
        assert nothing is self.unknown

    def test_without_a_local_rank(self) -> None:
        guessed = asked({}, -1)
        assert confirmed(guessed, -1, 1, 0, 1, 2, 3, current=0) is guessed
        assert indices(confirmed(guessed, -1, 1, 3, 1, current=1)) == [3, 1]

    @pytest.mark.parametrize(("rank", "current"), [(9, 0), (0, 9), (0, -1), (-5, 0)])
    def test_numbers_out_of_range_raise_nothing(self, rank, current) -> None:
        for visible in ((), (0, 1)):
            confirmed(self.unknown, rank, 4, *visible, current=current)
            confirmed(asked({}, rank, 4), rank, 4, *visible, current=current)


class TestWithThePlan:
    """From an environment to CPU sets: each rank for itself, and together they fit."""

    machine = host(
        ["0-15", "16-31"],
        [0, 0, 1, 1],
        llcs=[f"{c}-{c + 3}" for c in range(0, 32, 4)],
        vendor="amd",
        uuids=True,
    )

    def places(self, environs: list[dict[str, str]]) -> list[frozenset[int]]:
        plans = []
        for rank, environ in enumerate(environs):
            found = asked(environ, rank, len(environs), self.machine)
            request = Request(
                local_rank=rank, ranks=len(environs), devices=found.devices, options={}
            )
            plans.append(plan(self.machine, request))
        return [each.train for each in plans]

    def test_a_device_for_each_rank_gives_the_places_of_a_common_list(self) -> None:
        together = self.places([{CVD: "2,0,3,1"}] * 4)
        alone = self.places([{CVD: index} for index in "2031"])
        assert alone == together
        assert sum(map(len, alone)) == 32 == len(frozenset().union(*alone))
        assert [min(each) for each in alone] == [16, 0, 24, 8]

    def test_virtual_local_ranks_have_places_of_their_own(self) -> None:
        found = []
        for index in range(4):
            environ = {CVD: str(index), "TORCHELASTIC_RUN_ID": "none"}
            identity = asked(environ, 0, 4, self.machine)
            request = Request(local_rank=0, ranks=4, devices=identity.devices, options={})
            found.append(plan(self.machine, request).train)
        assert found == self.places([{}] * 4)

    def test_nothing_visible_binds_nothing(self) -> None:
        identity = asked({CVD: ""}, 0, 1, self.machine)
        request = Request(local_rank=0, ranks=1, devices=identity.devices, options={})
        assert plan(self.machine, request).reasons[-1][0] == "no-gpu"
