"""That collectives are found in what XLA compiles, and in forms of HLO text that other devices' programs have."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmresearch.parallel.collectives import ArrayShape, Collective, read_collectives, total_bytes

MESH = {"data": 2, "head": 4}
BY_HEAD = ((0, 1, 2, 3), (4, 5, 6, 7))
BY_DATA = ((0, 4), (1, 5), (2, 6), (3, 7))
EVERYONE = (tuple(range(8)),)
RING = tuple((4 * row + i, 4 * row + (i + 1) % 4) for row in range(2) for i in range(4))


@pytest.fixture(scope="module")
def compiled():
    """Texts by the names of the programs: they need more devices than this process has."""
    script = Path(__file__).parent / "compiled_programs.py"
    # what users' programs are: optimized
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def f32(*shape):
    return ArrayShape("f32", shape)


@pytest.mark.parametrize(
    ("program", "kind", "arrays", "groups", "axes", "times"),
    [
        ("one axis", "all-reduce", (f32(4, 4),), BY_HEAD, ("head",), 1),
        ("other axis", "all-reduce", (f32(4, 4),), BY_DATA, ("data",), 1),
        ("two axes", "all-reduce", (f32(4, 4),), EVERYONE, ("data", "head"), 1),
        ("tuple", "all-reduce", (f32(4, 4), f32(1, 4)), BY_HEAD, ("head",), 1),
        ("scatter", "reduce-scatter", (f32(2, 4),), BY_DATA, ("data",), 1),
        ("gather", "all-gather", (f32(4, 16),), BY_HEAD, ("head",), 1),
        ("permute", "collective-permute", (f32(4, 4),), RING, ("head",), 1),
        ("exchange", "all-to-all", (f32(1, 4),) * 4, BY_HEAD, ("head",), 1),
        ("scan", "all-reduce", (f32(4, 4),), BY_HEAD, ("head",), 5),
        ("nested scans", "all-reduce", (f32(4, 4),), BY_HEAD, ("head",), 15),
        ("traced count", "all-reduce", (f32(4, 4),), BY_HEAD, ("head",), None),
        ("in the condition", "all-reduce", (f32(),), EVERYONE, ("data", "head"), None),
        ("partial sums", "all-reduce", (f32(4, 4),), BY_HEAD, ("head",), 1),
    ],
)
def test_a_compiled_program_has_one_collective(compiled, program, kind, arrays, groups, axes, times):
    (found,) = read_collectives(compiled[program], MESH)
    assert found == Collective(kind, arrays, groups, axes, times, found.source)
    assert found.source.startswith("jit(")


def test_a_program_of_one_device_has_none(compiled):
    assert read_collectives(compiled["nothing"], {}) == ()


def test_both_branches_count(compiled):
    found = read_collectives(compiled["either"], MESH)
    assert sorted((each.kind, each.axes, each.times) for each in found) == [
        ("all-reduce", ("head",), 1),
        ("collective-permute", ("data",), 1),
    ]


def test_axes_of_size_1_are_not_named(compiled):
    mesh = {"one": 1, "data": 2, "two": 1, "head": 4, "three": 1}
    for program, axes in (("one axis", ("head",)), ("two axes", ("data", "head")), ("permute", ("head",))):
        assert [each.axes for each in read_collectives(compiled[program], mesh)] == [axes]


def test_a_mesh_of_another_size_has_no_such_axes(compiled):
    for program in ("one axis", "two axes", "permute"):
        (found,) = read_collectives(compiled[program], {"data": 2, "head": 2})
        assert found.axes is None
        assert found.groups == read_collectives(compiled[program], MESH)[0].groups


@given(st.data())
def test_a_torn_text_is_no_error(compiled, data):
    text = compiled[data.draw(st.sampled_from(sorted(compiled)))]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    again = data.draw(st.integers(0, len(text)))
    read_collectives(text[:start] + text[end:], MESH)
    read_collectives("ENTRY " + text[start:] + text[:again], MESH)


@given(st.text())
def test_what_is_not_hlo_has_none(text):
    assert read_collectives(text, MESH) == ()


def test_a_program_before_it_is_compiled_has_none():
    text = (
        'func.func public @main(%a: tensor<4xf32>) {\n  %0 = "stablehlo.all_reduce"(%a) ({\n  }) : tensor<4xf32>\n}\n'
    )
    assert read_collectives(text, MESH) == ()


def program(*lines, other=()):
    """A text whose entry has these instructions, beside other computations."""
    head = ["HloModule m, is_scheduled=true, num_partitions=8", "", *other, "ENTRY %main (p: f32[4]) -> f32[4] {"]
    return "\n".join([*head, *(f"  {line}" for line in lines), "}", ""])


def loop(operand, condition="c", body="b", times=3):
    stated = f'backend_config={{"known_trip_count":{{"n":"{times}"}}}}'
    return f"f32[4]{{0}} while(%{operand}), condition=%{condition}, body=%{body}, {stated}"


def computation(name, *lines):
    return "\n".join([f"%{name} (p: f32[4]) -> f32[4] {{", *(f"  {line}" for line in lines), "}", ""])


def only(*lines, other=(), mesh=MESH):
    (found,) = read_collectives(program(*lines, other=other), mesh)
    return found


SUM = "f32[4]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add"


@pytest.mark.parametrize(
    ("shape", "arrays", "size"),
    [
        ("f32[]", [("f32", ())], 4),
        ("f32[2,3]{1,0:T(8,128)}", [("f32", (2, 3))], 24),
        ("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}", [("bf16", (2, 3))], 12),
        ("pred[7]{0}", [("pred", (7,))], 7),
        ("s4[3]{0:E(4)}", [("s4", (3,))], 2),
        ("u2[5]{0}", [("u2", (5,))], 2),
        ("f8e4m3fn[5]{0}", [("f8e4m3fn", (5,))], 5),
        ("f4e2m1fn[4]{0}", [("f4e2m1fn", (4,))], 2),
        ("c64[2]{0}", [("c64", (2,))], 16),
        ("f32[<=8,2]{1,0}", [("f32", (8, 2))], 64),
        ("f32[0,4]{1,0}", [("f32", (0, 4))], 0),
        ("(f32[2]{0}, /*index=1*/s32[], token[])", [("f32", (2,)), ("s32", ())], 12),
    ],
)
def test_shapes(shape, arrays, size):
    found = only(f"ROOT %r = {shape} all-reduce(%p), replica_groups={{}}, to_apply=%add")
    assert found.arrays == tuple(ArrayShape(*array) for array in arrays)
    assert found.bytes == size
    assert found.numbers == sum(array.numbers for array in found.arrays)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("all-reduce", "f32[8]{0}"),
        ("all-reduce", "((f32[8]{0}), f32[8]{0}, u32[])"),
        ("all-gather", "(f32[2]{0}, f32[8]{0})"),
        ("all-gather", "((f32[2]{0}), (f32[8]{0}))"),
        ("collective-permute", "(f32[8]{0:T(128)}, f32[8]{0:T(128)S(1)}, u32[]{:S(2)}, u32[]{:S(2)})"),
        ("reduce-scatter", "((f32[32]{0}), f32[8]{0})"),
        ("all-to-all", "((f32[8]{0}), f32[8]{0}, s32[])"),
        ("collective-broadcast", "((f32[8]{0}), f32[8]{0})"),
        ("ragged-all-to-all", "((f32[8]{0}, f32[8]{0}, s32[4]{0}), f32[8]{0}, u32[])"),
    ],
)
def test_a_start_and_its_done_are_one(kind, shape):
    found = only(
        f"%s = {shape} {kind}-start(%p), channel_id=1, replica_groups=[2,4]<=[8], source_target_pairs={{{{0,1}}}}",
        f"ROOT %d = f32[8]{{0}} {kind}-done(%s)",
    )
    assert (found.kind, found.arrays, found.axes, found.times) == (kind, (f32(8),), ("head",), 1)


def test_several_results_of_a_start():
    shape = "((f32[2]{0}, bf16[3]{0}), (f32[8]{0}, bf16[12]{0}))"
    found = only(f"%s = {shape} all-gather-start(%p, %q), replica_groups=[2,4]<=[8], dimensions={{0}}")
    assert found.arrays == (f32(8), ArrayShape("bf16", (12,)))
    found = only("%s = (f32[8]{0}, f32[2]{0}) all-reduce-start(%p, %q), replica_groups=[2,4]<=[8], to_apply=%add")
    assert found.arrays == (f32(8), f32(2))


def test_a_wrapped_collective_is_one():
    wrapped = computation("wrapped", f"ROOT %r = {SUM}")
    found = only(
        "%s = ((f32[4]{0}), f32[4]{0}, s32[]) async-start(%p), calls=%wrapped",
        "%u = ((f32[4]{0}), f32[4]{0}, s32[]) async-update(%s), calls=%wrapped",
        "ROOT %d = f32[4]{0} async-done(%u), calls=%wrapped",
        other=[wrapped],
    )
    assert (found.kind, found.arrays) == ("all-reduce", (f32(4),))


@pytest.mark.parametrize(
    ("call", "times"),
    [
        ("call(%p), to_apply=%inner", 1),
        ("fusion(%p), kind=kLoop, calls=%inner", 1),
        ('custom-call(%p), custom_call_target="x", called_computations={%inner}', 1),
        ("conditional(%p, %p, %p), true_computation=%inner, false_computation=%other", 1),
        ("conditional(%p, %p, %p), branch_computations={%other, %inner}", 1),
        ('while(%p), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"7"}}', 7),
        (r'while(%p), condition=%c, body=%inner, backend_config="{\"known_trip_count\":{\"n\":\"7\"}}"', 7),
        ('while(%p), condition=%inner, body=%b, backend_config={"known_trip_count":{"n":"7"}}', 8),
        ('while(%p), condition=%c, body=%inner, backend_config={"known_trip_count":{"n":"0"}}', 0),
        ("while(%p), condition=%c, body=%inner", None),
        ("while(%p), condition=%inner, body=%b", None),
    ],
)
def test_computations_that_are_called(call, times):
    found = only(f"ROOT %r = f32[4]{{0}} {call}", other=[computation("inner", f"ROOT %r = {SUM}")])
    assert found.times == times


def test_a_computation_reached_twice_is_listed_twice_and_one_not_reached_never():
    found = read_collectives(
        program(
            "%once = f32[4]{0} call(%p), to_apply=%inner",
            f"ROOT %often = {loop('once', body='inner')}",
            other=[computation("inner", f"ROOT %r = {SUM}"), computation("idle", f"ROOT %r = {SUM}")],
        ),
        MESH,
    )
    assert [each.times for each in found] == [1, 3]


def test_a_computation_that_calls_itself_ends():
    inner = computation("inner", f"%a = {SUM}", "ROOT %r = f32[4]{0} call(%a), to_apply=%inner")
    assert only("ROOT %r = f32[4]{0} call(%p), to_apply=%inner", other=[inner]).times == 1


LOOP = "(s32[], f32[4], s32[])"


def counting_loop(first="0", step="1", bound="5", direction="LT", given="%b", handed_on="%n.1", asked="%n"):
    """As in programs for TPUs, which state no count: a loop that is given its bound."""
    return program(
        f"%first = s32[]{{:T(128)}} constant({first})",
        "%i = s32[]{:T(128)S(6)} copy(%first)",
        f"%b = s32[]{{:T(128)}} constant({bound})",
        f"%t = {LOOP} tuple(/*index=0*/%i, %p, {given})",
        f"ROOT %w = {LOOP} while(%t), condition=%ask, body=%run",
        other=[
            f"%run (q: {LOOP}) -> {LOOP} {{",
            f"  %q = {LOOP} parameter(0)",
            "  %i.1 = s32[] get-tuple-element(%q), index=0",
            "  %p.1 = f32[4]{0} get-tuple-element(%q), index=1",
            "  %n.1 = s32[] get-tuple-element(%q), index=2",
            f"  %step = s32[] constant({step})",
            "  %next = s32[]{:T(128)} add(%i.1, s32[] %step)",
            "  %sum = f32[4]{0} all-reduce(%p.1), replica_groups={}, to_apply=%add",
            f"  ROOT %t.1 = {LOOP} tuple(%next, %sum, {handed_on})",
            "}",
            f"%ask (q: {LOOP}) -> pred[] {{",
            f"  %q = {LOOP} parameter(0)",
            "  %i.2 = s32[] get-tuple-element(%q), index=0",
            "  %n = s32[] get-tuple-element(%q), index=2",
            f"  %five = s32[] constant({bound})",
            f"  ROOT %less = pred[]{{:T(512)}} compare(%i.2, {asked}), direction={direction}",
            "}",
        ],
    )


@given(st.integers(-9, 9), st.integers(1, 5), st.integers(-9, 20), st.sampled_from(["%n", "%five"]))
def test_a_loop_that_states_no_count_is_counted(first, step, bound, asked):
    (found,) = read_collectives(counting_loop(str(first), str(step), str(bound), asked=asked), MESH)
    assert found.times == len(range(first, bound, step))


@pytest.mark.parametrize(
    "changed",
    [
        {"direction": "NE"},
        {"step": "0"},
        {"step": "-1"},
        {"step": "2.5"},
        {"first": "{...}"},
        {"given": "%p"},
        {"handed_on": "%next"},
        {"asked": "%i.2"},
        {"asked": "%lost"},
    ],
)
def test_a_loop_that_does_not_just_count_has_no_known_times(changed):
    (found,) = read_collectives(counting_loop(**changed), MESH)
    assert found.times is None


PIECE = 'backend_config={"async_collective_fusion_config":{"flag_start":"2"}}'


def test_pieces_of_a_collective_that_a_tpu_spreads_over_fusions_are_one():
    gather = f"f32[8]{{0}} all-gather(%p), channel_id=3, replica_groups={{}}, dimensions={{0}}, {PIECE}"
    other = gather.replace("channel_id=3", "channel_id=4")
    body = [f"%{name} = f32[8]{{0}} fusion(%p), kind=kCustom, calls=%{name}_parts" for name in ("begin", "run", "end")]
    found = read_collectives(
        program(
            *body,
            f"ROOT %w = {loop('run', body='again')}",
            other=[
                computation("begin_parts", f"ROOT %r = {gather}"),
                computation("run_parts", f"%r = {gather}", f"ROOT %s = {other}"),
                computation("end_parts", f"ROOT %r = {gather}"),
                computation("again", *body[:-1], f"ROOT {body[-1]}"),
            ],
        ),
        MESH,
    )
    assert [each.times for each in found] == [1, 1, 3, 3]


def test_a_reduce_scatter_that_a_tpu_fuses_is_one():
    found = only(
        'ROOT %r = f32[1]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1, metadata={op_name="jit(f)/dot"}',
        other=[computation("all-reduce-scatter.1", f"%a = {SUM}", "ROOT %s = f32[1]{0} dynamic-slice(%a, %i)")],
    )
    assert (found.kind, found.arrays, found.axes, found.source) == (
        "reduce-scatter",
        (f32(1),),
        ("head",),
        "jit(f)/dot",
    )


def test_strings_are_not_read_as_attributes():
    name = r"jit(f)/\"calls=%inner, replica_groups={{0,4}}"
    inner = computation("inner", f"ROOT %r = {SUM}")
    named = f'metadata={{op_name="{name}"}}'
    assert only(f"ROOT %r = {SUM}, {named}").source == name
    assert read_collectives(program(f"ROOT %r = f32[4]{{0}} negate(%p), {named}", other=[inner]), MESH) == ()
    renamed = SUM.replace("replica_groups", f"{named}, replica_groups")
    assert only(f"ROOT %r = {renamed}").groups == BY_HEAD


def test_lines_that_are_broken_and_names_without_a_sign():
    text = """HloModule m, replica_count=8
      ENTRY main {
        p = f32[1, 4] parameter(0)
        ROOT sum = f32[1, 4] all-reduce(p),
            replica_groups={{0, 1, 2, 3},
                            {4, 5, 6, 7}}, to_apply=add
      }"""
    (found,) = read_collectives(text, MESH)
    assert (found.arrays, found.groups, found.source) == ((f32(1, 4),), BY_HEAD, "")


def test_bytes_add_up():
    one = Collective("all-reduce", (ArrayShape("bf16", (3, 2)), f32()), BY_HEAD, ("head",), 1, "")
    often = dataclasses.replace(one, times=5)
    unknown = dataclasses.replace(one, kind="all-gather", axes=("data",), times=None)
    odd = dataclasses.replace(one, axes=None, times=0)
    every = (one, often, unknown, odd)
    assert (one.numbers, one.bytes) == (7, 16)
    assert total_bytes(every) == 16 * (1 + 5 + 1)
    assert total_bytes(every, kind="all-reduce") == 16 * 6
    assert total_bytes(every, axes=("data",)) == 16
    assert total_bytes(every, kind="all-gather", axes=("head",)) == total_bytes(()) == 0
