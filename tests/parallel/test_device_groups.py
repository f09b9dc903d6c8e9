"""That groups of devices are read back as the axes that they were made for, in every form that HLO text has."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.parallel.collectives import read_collectives

MESH = {"data": 2, "head": 4}
BY_HEAD = ((0, 1, 2, 3), (4, 5, 6, 7))
BY_DATA = ((0, 4), (1, 5), (2, 6), (3, 7))


def reduced(groups, mesh=MESH, devices=8, kind="all-reduce"):
    """A program with one collective; what is read of it."""
    text = f"HloModule m, num_partitions={devices}\n\nENTRY %main (p: f32[]) -> f32[] {{\n  %p = f32[] parameter(0)\n"
    (found,) = read_collectives(
        f"{text}  ROOT %r = f32[] {kind}(%p), channel_id=1, {groups}, to_apply=%add\n}}\n", mesh
    )
    return found


meshes = st.lists(st.integers(1, 4), max_size=3).map(lambda sizes: dict(zip("abc", sizes, strict=False)))


@st.composite
def meshes_and_axes(draw):
    mesh = draw(meshes)
    return mesh, [name for name in mesh if draw(st.booleans())]


def groups_along(mesh, axes):
    """By the places of each device, without arrays."""
    groups = {}
    for device, place in enumerate(product(*map(range, mesh.values()))):
        apart = tuple(at for name, at in zip(mesh, place, strict=True) if name not in axes)
        groups.setdefault(apart, []).append(device)
    return list(groups.values())


def listed(groups):
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


@given(meshes_and_axes(), st.randoms(use_true_random=False))
def test_listed_groups_are_those_of_their_axes(mesh_and_axes, random):
    mesh, axes = mesh_and_axes
    groups = groups_along(mesh, axes)
    for group in groups:
        random.shuffle(group)
    random.shuffle(groups)
    found = reduced(f"replica_groups={listed(groups)}", mesh, prod(mesh.values()))
    assert found.groups == tuple(map(tuple, groups))
    assert found.axes == tuple(name for name in axes if mesh[name] > 1)


@given(meshes_and_axes())
def test_counted_groups_are_those_of_their_axes(mesh_and_axes):
    mesh, axes = mesh_and_axes
    sizes, groups = ",".join(map(str, mesh.values())) or "1", groups_along(mesh, axes)
    order = [i for i, name in enumerate(mesh) if name not in axes] + [i for i, name in enumerate(mesh) if name in axes]
    turned = f"T({','.join(map(str, order))})" if order != sorted(order) else ""
    text = f"replica_groups=[{len(groups)},{len(groups[0])}]<=[{sizes}]{turned}"
    found = reduced(text, mesh, prod(mesh.values()))
    assert found.groups == tuple(map(tuple, groups))
    assert found.axes == tuple(name for name in axes if mesh[name] > 1)


@given(meshes_and_axes())
def test_groups_by_the_names_of_axes_are_those_of_their_axes(mesh_and_axes):
    mesh, axes = mesh_and_axes
    sizes = ",".join(f"'axis_{name}'={size}" for name, size in mesh.items())
    named = ",".join(f"'axis_{name}'" for name in axes)
    found = reduced(f"replica_groups=mesh[{sizes}] {{{named}}}", mesh, prod(mesh.values()))
    assert found.groups == tuple(map(tuple, groups_along(mesh, axes)))
    assert found.axes == tuple(name for name in axes if mesh[name] > 1)


@given(meshes_and_axes(), st.integers(1, 3))
def test_a_shift_goes_over_the_axes_that_it_shifts_along(mesh_and_axes, steps):
    mesh, axes = mesh_and_axes
    places = list(product(*map(range, mesh.values())))
    shifted = [
        tuple((at + steps * (name in axes)) % size for at, (name, size) in zip(place, mesh.items(), strict=True))
        for place in places
    ]
    pairs = [(device, places.index(place)) for device, place in enumerate(shifted)]
    found = reduced(f"source_target_pairs={listed(pairs)}", mesh, len(places), "collective-permute")
    assert found.groups == tuple(pairs)
    assert found.axes == tuple(name for name in axes if steps % mesh[name])


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", (tuple(range(8)),)),
        ("{{0,1,2,3},{4,5,6,7}}", BY_HEAD),
        ("[2,4]<=[8]", BY_HEAD),
        ("[4,2]<=[2,4]T(1,0)", BY_DATA),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", BY_HEAD),
        ("mesh['x'=8] {'x':(2)4}", BY_HEAD),
        ("mesh['x'=8] {'x':(1)2}", BY_DATA),
        ("mesh['x'=8] {'x':(4)2,'x':(2)2}", ((0, 2, 1, 3), (4, 6, 5, 7))),
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}", BY_DATA),
        ("mesh['x'=4,'y'=2], device_ids=(0,4,1,5,2,6,3,7) {'y'}", BY_DATA),
        ("mesh[x=4,y=2], device_ids=(0,4,1,5,2,6,3,7) {y}", BY_DATA),
        ("@mesh<a=2,b=4> {b}", BY_HEAD),
        ("@mesh<x=4,y=2>([2,4]T(1,0)) {y}", BY_DATA),
    ],
)
def test_forms_of_groups(text, groups):
    found = reduced(f"replica_groups={text}, use_global_device_ids=true")
    assert found.groups == groups
    assert found.axes == (("data", "head") if len(groups) == 1 else ("head",) if len(groups) == 2 else ("data",))


@pytest.mark.parametrize(
    "text",
    [
        "everyone",
        "[2,4]<=[9]",
        "[4,2]<=[2,4]T(1,2)",
        "[8]<=[8]",
        "mesh['x'=8] {'y'}",
        "mesh['x'=8] {'x':(3)2}",
        "mesh['x'=8] {'x':(0)2}",
        "mesh['x'=8] {'x':(1)4,'x':(2)4}",
        "mesh['x'=8], device_ids=(0,1) {'x'}",
        "maximal_mesh[device_id=0] {}",
    ],
)
def test_forms_that_are_not_known_have_no_groups(text):
    found = reduced(f"replica_groups={text}")
    assert (found.groups, found.axes) == ((), None)


@pytest.mark.parametrize("groups", ["{{0,1},{2,3},{4,5},{6,7}}", "{{0,1,2,3}}", "{{0,5},{1,4},{2,7},{3,6}}"])
def test_groups_of_no_axes(groups):
    found = reduced(f"replica_groups={groups}")
    assert found.groups and found.axes is None


def test_groups_of_one_device_each_go_over_no_axis():
    assert reduced(f"replica_groups={listed([[i] for i in range(8)])}").axes == ()


def test_groups_that_are_not_written_are_everyone():
    assert reduced("use_global_device_ids=true").axes == ("data", "head")


@pytest.mark.parametrize(
    ("pairs", "groups", "axes"),
    [
        ("{}", (), ()),
        ("{{0,1}}", ((0, 1),), ("head",)),
        ("{{3,3},{0,5}}", ((3, 3), (0, 5)), ("data", "head")),
        ("{{0,1},{1,9}}", ((0, 1), (1, 9)), None),
        ("{{0,1,2}}", (), None),
        ("ring", (), None),
    ],
)
def test_pairs(pairs, groups, axes):
    other = "frontend_attributes={_xla_send_recv_source_target_pairs={{0,4}}}"
    found = reduced(f"{other}, source_target_pairs={pairs}", kind="collective-permute")
    assert (found.groups, found.axes) == (groups, axes)
