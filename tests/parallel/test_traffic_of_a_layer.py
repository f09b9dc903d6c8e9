"""What the layers of a model exchange between devices, counted in their compiled programs."""

import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.head_output.test_orders import SETTINGS
from tests.parallel.examples import BATCH, VOCAB, arrangement_of, model, transformer_of
from wmresearch.head_output.weights import about, abstract_params, join, split
from wmresearch.parallel.collectives import read_collectives
from wmresearch.parallel.devices import ManualDevices, ShardedDevices
from wmresearch.parallel.nats import spread

FLOAT32 = {"dtype": "float32", "param_dtype": "float32"}
B_T_D = (BATCH, 8, 16)
STREAM = math.prod(B_T_D)


class Layer:
    """A layer (or its attention) on so many devices of the head axis."""

    def __init__(self, config, devices, implementation="shard_map", part=lambda block: block, shard_positions=False):
        transformer = transformer_of(config)
        arrangement = arrangement_of(transformer, config, 1, devices)
        self.mesh = mesh = arrangement.mesh
        exchange = (
            ManualDevices(devices, VOCAB, shard_positions)
            if implementation == "shard_map"
            else ShardedDevices(mesh, VOCAB, shard_positions)
        )
        at_once = 1 if implementation == "shard_map" else devices
        module = part(spread(transformer, arrangement.placement, exchange, at_once).blocks[0])
        params = jax.eval_shape(arrangement.arrange, abstract_params(transformer))
        specs = arrangement.specs(params)
        trained = about(transformer, lambda _, param: param.trainable)
        self.params, specs, trained = (part(Attributes(tree["blocks"][0])).tree for tree in (params, specs, trained))
        graph, _ = nnx.split(module)
        of = P(None, ("head", "copy")) if shard_positions else P()

        def call(params, x):
            return nnx.merge(graph, params)(x, None)

        if implementation == "shard_map":
            call = jax.shard_map(call, mesh=mesh, in_specs=(specs, of), out_specs=of)
        self.call, self.trained, self.stream = call, trained, NamedSharding(mesh, of)
        self.shardings = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P)
        )
        self.x = jax.ShapeDtypeStruct(B_T_D, jnp.float32)

    def forward(self):
        """The collectives of the forward pass, those among one device left out."""
        places = (self.shardings, self.stream)
        return self._read(jax.jit(self.call, in_shardings=places, out_shardings=self.stream), self.params, self.x)

    def backward(self):
        """Those of the backward pass, and of what it needs of the forward pass."""
        own, fixed = split(self.params, self.trained)
        own_places, fixed_places = split(self.shardings, self.trained)

        def pulled_back(own, fixed, x, slope):
            return jax.vjp(lambda own, x: self.call(join(own, fixed), x), own, x)[1](slope)

        jitted = jax.jit(
            pulled_back,
            in_shardings=(own_places, fixed_places, self.stream, self.stream),
            out_shardings=(own_places, self.stream),
        )
        return self._read(jitted, own, fixed, self.x, self.x)

    def _read(self, jitted, *arguments):
        text = jitted.lower(*arguments).compile().as_text()
        return [each for each in read_collectives(text, dict(self.mesh.shape)) if each.axes != ()]


class Attributes:
    """A tree with its branches as attributes, as a module has them."""

    def __init__(self, tree):
        self.tree = tree

    def __getattr__(self, name):
        return Attributes(self.tree[name])


def attention(block):
    return block.attention


def counted(collectives):
    """How many arrays of B·T·d numbers are exchanged, and how many numbers in others.

    Of two that do not depend on one another the compiler may make one operation.
    """
    arrays = [array.numbers for each in collectives for array in each.arrays]
    return arrays.count(STREAM), sum(arrays) - STREAM * arrays.count(STREAM)


WHOLE_READING = ("dense", "block_diagonal", "kronecker", "monarch", "sparse")
"""Kinds whose heads read x itself, and so share one bias `[1, d]` of what they read."""


@pytest.mark.parametrize("kind", SETTINGS)
def test_attention_has_one_all_reduce_each_way(kind):
    """With eight heads on eight devices; and the gradients of what heads share by design. Of `none`: an all-gather."""
    setting = SETTINGS[kind][0]
    layer = Layer(model({"kind": kind, **setting}, n_heads=8, **FLOAT32), 8, part=attention)
    forward, backward = layer.forward(), layer.backward()
    assert [each.kind for each in forward] == ["all-gather" if kind == "none" else "all-reduce"]
    assert counted(forward) == (1, 0)
    assert {each.kind for each in backward} == {"all-reduce"}
    bases = 2 * 16 * setting["rank"] + setting["rank"] if kind == "shared_basis" else 0  # U, V, the bias of x U
    assert counted(backward) == (1, bases + 16 * (kind in WHOLE_READING))


@pytest.mark.parametrize(("kind", "shared"), [("standard", 2 * (16 * 4 + 4)), ("dense", 16 * 4 + 4 + 16)])
def test_devices_that_share_a_key_head_add_its_gradients(kind, shared):
    """Keys and values `[d, 1, 4]` with their biases, over the devices that have the same ones; and no others.

    Heads of `dense` have no values of their own but share one bias `[1, d]`, over all devices.
    """
    backward = Layer(model({"kind": kind}, n_kv_heads=2, bias=True, **FLOAT32), 4, part=attention).backward()
    assert counted(backward) == (1, shared)
    assert counted([each for each in backward if each.axes == ("copy",)]) == (0, shared - 16 * (kind == "dense"))


def test_a_block_has_two_each_way():
    layer = Layer(model(n_heads=8, **FLOAT32), 8)
    forward, backward = layer.forward(), layer.backward()
    assert [each.kind for each in forward] == ["all-reduce"] * 2
    assert counted(forward) == (2, 0)
    assert [each.kind for each in backward] == ["all-reduce"] * 3
    assert counted(backward) == (3, 0)  # and that of attention once more, which the MLP's backward pass needs


def test_divided_positions_are_gathered_and_scattered_in_place_of_that():
    layer = Layer(model(n_heads=8, **FLOAT32), 8, shard_positions=True)
    assert [each.kind for each in layer.forward()] == ["all-gather", "reduce-scatter"] * 2
    backward = layer.backward()
    assert {each.kind for each in backward if each.numbers > 1000} == {"all-gather"}
    reduced = [each for each in backward if each.kind == "all-reduce"]
    assert sum(each.numbers for each in reduced) == 6 * 16  # gradients of the norms' γ and β, and of output biases


@pytest.mark.parametrize("kind", ["standard", "factorized", "dense", "dynamic_rank", "none"])
def test_jit_has_one_operation_each_way(kind):
    """Its backward pass adds what queries, keys and values have of the gradient apart: up to three times as much."""
    layer = Layer(model({"kind": kind, **SETTINGS[kind][0]}, n_heads=8, **FLOAT32), 8, "jit", part=attention)
    forward, backward = layer.forward(), layer.backward()
    assert [each.kind for each in forward] == ["all-gather" if kind == "none" else "all-reduce"]
    assert forward[0].numbers == STREAM
    assert [each.kind for each in backward] == ["all-reduce"]
    assert backward[0].numbers / (STREAM) <= 3
