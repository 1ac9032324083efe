"""Random numbers by name. The draw for "the output of turn 2 of sample 7" is the same in every simulation of a seed,
no matter what else happens. So a run without its cause has the same dice, and the difference is what the cause did."""

from hashlib import blake2b
from math import exp
from statistics import NormalDist

_NORMAL = NormalDist()


class Dice:
    def __init__(self, seed):
        self.seed = seed

    def bits(self, size, *key):
        """`size` bytes."""
        return blake2b(repr((self.seed, *key)).encode(), digest_size=size).digest()

    def uniform(self, low, high, *key):
        return low + (high - low) * (int.from_bytes(self.bits(7, *key), "little") + 0.5) / 2**56

    def chance(self, probability, *key):
        return probability > 0 and self.uniform(0, 1, *key) < probability

    def integer(self, low, high, *key):
        """`low` to `high`, both included."""
        return min(high, low + int(self.uniform(0, high - low + 1, *key)))

    def choice(self, options, *key):
        return options[self.integer(0, len(options) - 1, *key)]

    def weighted(self, weights, *key):
        """An index, by weight."""
        left = self.uniform(0, sum(weights), *key)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(weights) - 1

    def log_normal(self, median, sigma, *key):
        return median * exp(sigma * _NORMAL.inv_cdf(self.uniform(0, 1, *key)))

    def log_uniform(self, low, high, *key):
        return low * (high / low) ** self.uniform(0, 1, *key)

    def shuffled(self, items, *key):
        return [item for _, item in sorted((self.bits(8, *key, index), item) for index, item in enumerate(items))]
