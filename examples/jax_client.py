"""A client whose model is a JAX function, next to PyTorch clients. Needs: pip install 'fedal[jax]'

python examples/jax_client.py
In a deployment, with this folder on PYTHONPATH: fedal join --model jax_client:make ...
"""

import jax
import jax.numpy as jnp
import optax

import fedal
from fedal.learners.jax_learner import JaxLearner, Params


def init(key: jax.Array, width: int = 64) -> Params:
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (64, width)) / 8, "b": jnp.zeros(width)},
        "answer": {"w": jax.random.normal(second, (width, 10)) / jnp.sqrt(width), "b": jnp.zeros(10)},
    }


def apply(params: Params, x: jax.Array) -> jax.Array:
    """Logits of a batch: a pure function of parameters and inputs."""
    pixels = x.reshape(len(x), -1)
    hidden = jnp.tanh(pixels @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.asarray(hidden @ params["answer"]["w"] + params["answer"]["b"])


def make() -> JaxLearner:
    return JaxLearner(apply, init(jax.random.key(0)), optax.adam(1e-3))


def main() -> None:
    clients = [
        {"name": "in-jax"},
        {"name": "in-torch", "model": "mlp-small"},
        {"name": "convolves", "model": "cnn-small"},
    ]
    for method in ("local", "fedal"):
        learner = make()
        config = fedal.Config(method=method, dataset="digits", clients=clients, iterations=100)
        run = fedal.run(config, f"runs/{method}", models={"in-jax": learner})
        print(method, {row["client"]: round(row["test_accuracy"], 3) for row in run.client_metrics if row["final"]})
    print("norm of the trained hidden layer:", jnp.linalg.norm(learner.params["hidden"]["w"]).round(2))


if __name__ == "__main__":
    main()
