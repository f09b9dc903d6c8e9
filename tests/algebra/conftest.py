"""The laws are checked in float64; a test of float32 asks for it in its arrays."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield
