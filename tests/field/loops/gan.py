"""A GAN in the manner of torch's DCGAN example: two loaders, two optimizers, two updates a step."""

from __future__ import annotations

from tests.field.parts import loader, network, sgd
from tests.field.stopwatch import Stopwatch


def main() -> None:
    """Train twelve steps."""
    watch = Stopwatch()
    critic = network(0)
    generator = network(1)
    optimizers = {"critic": sgd(critic), "generator": sgd(generator)}
    real, noise = watch.iterator(loader(12)), watch.iterator(loader(12, batch_size=3))
    for _ in range(12):
        sample, seed = watch.fetch(real), watch.fetch(noise)
        with watch("forward"):
            made = generator(seed)
            judged = critic(sample)
            judged_made = critic(made.detach().expand_as(seed))
        loss = judged.square().mean() + (1 - judged_made).square().mean()
        optimizers["critic"].zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizers["critic"].step()
        with watch("forward"):
            judged = critic(made.expand_as(seed))
        loss = judged.square().mean()
        optimizers["generator"].zero_grad()
        with watch("backward"):
            loss.backward()
        with watch("optimizer"):
            optimizers["generator"].step()
        watch.step(loss)
    watch.done()


if __name__ == "__main__":
    main()
