import pytest

from tests.training.examples import TEXT


@pytest.fixture(autouse=True)
def float32_again():
    """A run sets JAX's float64 switch for its whole process: the next test finds it as it was."""
    yield
    import jax

    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path
